import assert from "node:assert/strict";
import test from "node:test";

import { ApiError } from "../../web/api.js";
import { parseRoute } from "../../web/data/route.js";
import { createStore } from "../../web/data/store.js";
import { createPlaces, fetched, placeOf } from "../../web/places.js";
import { initialState } from "../../web/state.js";

/** @param {string} hash */
function opened(hash) {
  const store = createStore(initialState({ language: "en", theme: "dark", width: 1440, route: parseRoute(hash) }), queueMicrotask);
  const controller = /** @type {import("../../web/controller.js").Controller} */ (/** @type {unknown} */ ({ hear: () => {}, reload: () => {} }));
  const actions = /** @type {import("../../web/places.js").PlaceActions} */ ({});
  return { store, actions, places: createPlaces(store, controller, actions) };
}

/** @param {import("../../web/data/store.js").Store<import("../../web/state.js").State>} store @param {(state: import("../../web/state.js").State) => boolean} reached */
const until = (store, reached) =>
  new Promise((resolve) => {
    const stop = store.subscribe((state) => reached(state) && (stop(), resolve(undefined)));
  });

test("what a place needs comes when it is opened, its actions before its view", async () => {
  const { store, actions, places } = opened("#/run/r/config");
  assert.equal(placeOf(store.get().route), "config");
  places.follow(store.get());
  await until(store, (state) => "config" in state.views);
  assert.deepEqual(Object.keys(store.get().views), ["config"]);
  assert.equal(typeof actions.config.find, "function");
});

test("an overview needs no place, and all of them come in the end", async () => {
  const { store, actions, places } = opened("#/run/r");
  places.follow(store.get());
  places.rest();
  await until(store, ({ views }) => Object.keys(views).length === 5);
  assert.deepEqual(Object.keys(actions).sort(), ["cards", "config", "desk", "scaler"]);
});

test("another place is tried although one has not come, the same one when a person says so", () => {
  const { store, places } = opened("#/compare");
  const awaited = { place: "compare", error: new ApiError(0, "unreachable", "", "") };
  store.set({ awaited });
  places.follow(store.get());
  assert.equal(store.get().awaited, awaited);
  assert.deepEqual(store.get().views, {});
  store.set({ route: parseRoute("#/alerts") });
  places.follow(store.get());
  assert.equal(store.get().awaited, null);
  store.set({ awaited });
  places.again();
  assert.equal(store.get().awaited, null);
});

test("a module that cannot be had is a server that does not answer", async () => {
  const refused = await fetched(Promise.reject(new TypeError("Failed to fetch dynamically imported module"))).catch((error) => error);
  assert(refused instanceof ApiError && refused.status === 0);
  const mistake = new SyntaxError("Unexpected token");
  assert.equal(await fetched(Promise.reject(mistake)).catch((error) => error), mistake);
});
