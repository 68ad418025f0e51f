import assert from "node:assert/strict";
import test from "node:test";

import { parseRoute } from "../../web/data/route.js";
import { createStore } from "../../web/data/store.js";
import { createNewest } from "../../web/newest.js";
import { IDLE, initialState } from "../../web/state.js";

const { fetch } = globalThis;

/** @param {string} place @returns {import("../../web/data/store.js").Store<import("../../web/state.js").State>} */
function opened(place) {
  /** @type {import("../../web/state.js").State} */
  const state = initialState({ language: "en", theme: "dark", width: 1440, route: parseRoute(place) });
  /** @type {any} */
  const run = { name: "r", state: "finished", attempt: 1, steps: 9, worst: { kind: "act_in", headroom: 1, layer: "a", step: 8 } };
  state.runs = { status: "ready", data: [run], error: null };
  return createStore(state, (flush) => flush());
}

/** @param {(asked: string[]) => Promise<void>} body told what is asked for */
async function answering(body) {
  /** @type {string[]} */
  const asked = [];
  globalThis.fetch = async (path) => {
    asked.push(String(path));
    return Response.json({ steps: [8], values: { headroom: [2.5] } });
  };
  try {
    await body(asked);
  } finally {
    globalThis.fetch = fetch;
  }
}

/** @param {ReturnType<typeof opened>} store */
async function loaded(store) {
  while (store.get().newest.status !== "ready") await new Promise((resolve) => setTimeout(resolve));
}

test("a run that is opened again has its meter filled again", () =>
  answering(async (asked) => {
    const store = opened("#/run/r/scaler?kind=grad");
    const { follow } = createNewest(store, () => {});
    for (let visit = 1; visit <= 2; visit++) {
      follow(store.get());
      await loaded(store);
      follow(store.get());
      assert.deepEqual(store.get().newest.data, [2.5]);
      assert.equal(asked.length, visit);
      store.set({ newest: IDLE }); // as on the way to another page
    }
  }));

test("beside updates, which are cast to no format, the kind that is nearest to its limit is on the meter", () =>
  answering(async (asked) => {
    const store = opened("#/run/r/layers?metric=ratio");
    createNewest(store, () => {}).follow(store.get());
    await loaded(store);
    assert.match(asked[0] ?? "", /kind=act_in&/);
  }));
