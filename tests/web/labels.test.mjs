import assert from "node:assert/strict";
import test from "node:test";
import { clearOf, spread } from "../../web/data/labels.js";
import { tickLabel } from "../../web/data/text.js";
import { logTicks } from "../../web/data/ticks.js";

test("a label that would touch one before it is left out", () => {
  const labels = [{ at: 100, width: 10 }, { at: 108, width: 20 }, { at: 50, width: 20 }, { at: 116, width: 20 }];
  assert.deepEqual(clearOf(labels, 0), [true, false, true, true]);
  assert.deepEqual(clearOf(labels, 5), [true, false, true, false]);
});

test("places move apart and stay inside", () => {
  assert.deepEqual(spread([10, 12, 50], 14, 0, 100), [10, 24, 50]);
  assert.deepEqual(spread([90, 99, 99], 14, 0, 100), [72, 86, 100]);
  assert.deepEqual(spread([-5, -5], 14, 8, 100), [8, 22]);
});

test("a logarithmic axis has labels whatever it spans", () => {
  assert.deepEqual(logTicks(1.1, 2.4), [1.5, 2]);
  assert.deepEqual(logTicks(0.5, 30), [0.5, 1, 2, 5, 10, 20]);
  assert.deepEqual(logTicks(1e-3, 2e3), [1e-2, 1, 1e2]);
  for (const [from, to] of /** @type {const} */ ([[1, 1.02], [0.9, 9], [3e-7, 5e-7], [1e-30, 1e30], [4e4, 4.1e5]])) {
    const ticks = logTicks(from, to);
    assert(ticks.length >= 2 && ticks.length <= 18, `${from} to ${to}: ${ticks}`);
    assert.equal(new Set(ticks.map(tickLabel)).size, ticks.length);
  }
  assert.deepEqual([1.5, 0.02, 20000, 3e-7, 1e5, -2.5, 0.1 + 0.2].map(tickLabel), ["1.5", "0.02", "20000", "3e\u22127", "1e5", "\u22122.5", "0.3"]);
});
