import assert from "node:assert/strict";
import test from "node:test";
import { POINT_LIMIT, appendPoints, emptySeries, lastValue, seriesFrom } from "../../web/data/series.js";

test("history keeps missing and non-finite values apart", () => {
  const series = seriesFrom({ name: "loss", cell: 1, steps: [0, 1, 2], values: [1, "NaN", null], min: [1, "NaN", null], max: [1, "Infinity", null] });
  assert.deepEqual(series.nonfinite, [1]);
  assert.equal(lastValue(series), NaN);
});

test("a live point goes on where history ends, and a repeat of it is left out", () => {
  const series = seriesFrom({ name: "loss", cell: 1, steps: [0, 1], values: [4, 3], min: [4, 3], max: [4, 3] });
  appendPoints(series, [[1, 9], [2, 2.5], [3, "NaN"], [4, 2]]);
  assert.deepEqual(series.steps, [0, 1, 2, 3, 4]);
  assert.deepEqual(series.values, [4, 3, 2.5, NaN, 2]);
  assert.deepEqual(series.nonfinite, [3]);
});

test("live points merge into the last cell of pooled history", () => {
  const series = seriesFrom({ name: "loss", cell: 4, steps: [0, 4], values: [3, 2], min: [1, 2], max: [5, 2] });
  series.weight[1] = 1;
  appendPoints(series, [[5, 4], [6, 6], [8, 1]]);
  assert.deepEqual(series.steps, [0, 4, 8]);
  assert.deepEqual(series.values, [3, 4, 1]);
  assert.deepEqual(series.max, [5, 6, 1]);
});

test("past the limit the series is pooled by two: means exact, extremes kept", () => {
  const series = emptySeries("loss");
  const total = POINT_LIMIT * 2 + 10;
  appendPoints(series, Array.from({ length: total }, (_, i) => [i, i === 700 ? 1e6 : i]));
  assert.equal(series.cell, 4);
  assert.equal(series.max[700 / 4], 1e6);
  assert.equal(series.values[0], 1.5);
  assert.equal(series.steps[1], 4);
});
