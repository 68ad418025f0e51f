import assert from "node:assert/strict";
import test from "node:test";
import { namesIn, namesText } from "../../web/data/arrange.js";
import { HOME, formatRoute, parseRoute } from "../../web/data/route.js";
import { MOST_PICKED, found, toggled } from "../../web/data/run-list.js";

/** @param {string} name @param {string} state @param {string} layer @returns {import("../../web/data/types.js").RunItem} */
const run = (name, state, layer) => ({
  name, state, attempt: 1, steps: 3, started_at: null, heartbeat_at: null, finished_at: null, sparkline: [], overhead: null, world: 1, missing_ranks: [],
  last: { loss: null, grad_norm: null, loss_scale: null }, worst: layer === "" ? null : { headroom: 1, layer, kind: "grad", step: 2 },
  alerts: { critical: 0, warning: 0, info: 0 }, alerts_past: { critical: 0, warning: 0, info: 0 },
});

test("a run is found by words in its name, its state or its worst layer, in any order", () => {
  const runs = [run("llama-fp8", "live", "layers.3.down"), run("llama-bf16", "finished", ""), run("qwen", "live", "head")];
  const names = (/** @type {string} */ find) => found(runs, find).map(({ name }) => name);
  assert.deepEqual(names(""), ["llama-fp8", "llama-bf16", "qwen"]);
  assert.deepEqual(names("LIVE llama"), ["llama-fp8"]);
  assert.deepEqual(names("down"), ["llama-fp8"]);
  assert.deepEqual(names("nothing"), []);
});

test("no more runs are picked than a comparison shows, and hostile names survive the address", () => {
  let picked = ["a,b", "50%"];
  picked = toggled(picked, "<x>&=#");
  assert.deepEqual(toggled(picked, "50%"), ["a,b", "<x>&=#"]);
  for (let i = 0; i < 9; i++) picked = toggled(picked, `run${i}`);
  assert.equal(picked.length, MOST_PICKED);
  const own = { find: "", pick: namesText(["a,b", "50%", "<x>&=#"]) };
  assert.deepEqual(namesIn(parseRoute(formatRoute({ ...HOME, own })).own["pick"] ?? ""), ["a,b", "50%", "<x>&=#"]);
});
