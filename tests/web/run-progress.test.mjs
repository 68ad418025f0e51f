import assert from "node:assert/strict";
import test from "node:test";
import { chipWord, executedFamily, lasted, precisionWord, roughly, secondsLeft, shareDone } from "../../web/data/run-progress.js";

/** @param {Record<string, unknown>} more @returns {import("../../web/data/types.js").RunItem} */
const run = (more) => /** @type {any} */ ({ state: "live", steps: 400, max_steps: 1000, pace: { seconds_per_step: 0.5, steps: 600, seconds: 300 }, precision: { declared: null, executed: {}, unmet: 0 }, ...more });

test("the time left is that of the steps to come at the present pace", () => {
  assert.equal(secondsLeft(run({}), false), 300);
  assert.equal(shareDone(run({})), 0.4);
});

test("there is no estimate without a plan or a pace, at the end, or while no step comes", () => {
  for (const more of [{ max_steps: null }, { pace: null }, { steps: 1000 }, { steps: 2000 }, { state: "stalled" }, { state: "lost" }, { state: "finished" }]) assert.equal(secondsLeft(run(more), false), null, JSON.stringify(more));
  assert.equal(secondsLeft(run({}), true), null);
  assert.equal(shareDone(run({ steps: 2000 })), 1);
  assert.equal(shareDone(run({ max_steps: null })), null);
});

test("an estimate has two figures", () => {
  assert.deepEqual([0, 29, 31, 3569, 3600, 7 * 3600 + 61, 86_399, 86_400, 90 * 3600].map(roughly), ["<1m", "<1m", "1m", "59m", "1h 00m", "7h 01m", "1d 00h", "1d 00h", "3d 18h"]);
});

test("a run lasts until it ended, until now, or until it was last heard of", () => {
  const started_at = "2026-01-01T00:00:00Z";
  const heartbeat_at = "2026-01-01T00:01:00Z";
  assert.equal(lasted(run({ started_at, heartbeat_at, finished_at: "2026-01-01T00:02:00Z" }), 0), 120);
  assert.equal(lasted(run({ started_at, heartbeat_at, finished_at: null }), Date.parse(started_at) + 5000), 5);
  assert.equal(lasted(run({ started_at, heartbeat_at, finished_at: null, state: "stalled" }), 0), 60);
  assert.equal(lasted(run({ started_at: null, heartbeat_at, finished_at: null }), 0), null);
});

test("the precision of a run is FP8 where any layer computes in it, else that of most", () => {
  const of = (/** @type {Record<string, number>} */ executed, /** @type {string | null} */ declared = null) => run({ precision: { declared, executed, unmet: 0 } });
  assert.equal(executedFamily(of({ bf16: 90, e5m2fnuz: 1 })), "fp8");
  assert.equal(executedFamily(of({ fp32: 2, bf16: 90 })), "bf16");
  assert.equal(executedFamily(of({ e2m1: 3 })), "e2m1");
  assert.equal(executedFamily(of({})), "");
  assert.deepEqual([precisionWord(of({}, "fp16")), precisionWord(of({ bf16: 1 }, "fp8")), precisionWord(of({}))], ["fp16", "bf16", ""]);
});

test("a chip is called by its model", () => {
  assert.deepEqual(["AMD Instinct MI300X", "NVIDIA H200", "CPU", "AMD Radeon RX 7900 XTX", "AMD"].map(chipWord), ["MI300X", "H200", "CPU", "RX 7900 XTX", "AMD"]);
});
