import assert from "node:assert/strict";
import test from "node:test";

import { ApiError } from "../../web/api.js";
import { createLoads } from "../../web/loads.js";

/** @typedef {import("../../web/state.js").Load<string>} Load */

/** @param {() => unknown} [unauthorised] */
function slots(unauthorised = () => {}) {
  /** @type {Record<string, Load>} */
  const held = {};
  const load = createLoads({ get: (/** @type {string} */ slot) => held[slot] ?? { status: "idle", data: null, error: null }, set: (slot, value) => void (held[slot] = value), unauthorised });
  return { held, load };
}

/** An answer that comes when it is told to. */
function answer() {
  /** @type {(text: string) => void} */
  let come = () => {};
  /** @type {(error: Error) => void} */
  let fail = () => {};
  const promise = new Promise((resolve, reject) => ([come, fail] = [resolve, reject]));
  return { promise, come: (/** @type {string} */ text) => come(text), fail: (/** @type {Error} */ error) => fail(error) };
}

test("the newest load of a slot wins, in whatever order the answers come", async () => {
  const { held, load } = slots();
  const [first, second] = [answer(), answer()];
  const loads = [load("a", () => first.promise), load("a", () => second.promise)];
  second.come("second");
  first.come("first");
  assert.deepEqual(await Promise.all(loads), [false, true]);
  assert.equal(held["a"]?.data, "second");
});

test("what was dropped comes no more, whether it succeeds or fails", async () => {
  const { held, load } = slots();
  for (const end of [(/** @type {ReturnType<typeof answer>} */ one) => one.come("late"), (/** @type {ReturnType<typeof answer>} */ one) => one.fail(new ApiError(500, "http_500", "", ""))]) {
    const one = answer();
    /** @type {AbortSignal | undefined} */
    let signal;
    const loading = load("a", (given) => ((signal = given), one.promise));
    load.drop("a");
    held["a"] = { status: "idle", data: null, error: null };
    assert.equal(signal?.aborted, true);
    end(one);
    assert.equal(await loading, false);
    assert.deepEqual(held["a"], { status: "idle", data: null, error: null });
  }
});

test("a refusal that was overtaken while somebody signed in is not shown", async () => {
  const asked = answer();
  const { held, load } = slots(() => asked.promise);
  const first = load("a", () => Promise.reject(new ApiError(401, "unauthorised", "", "")));
  assert.equal(await load("a", () => Promise.resolve("second")), true);
  asked.come("");
  assert.equal(await first, false);
  assert.deepEqual(held["a"], { status: "ready", data: "second", error: null });
});
