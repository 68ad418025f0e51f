import assert from "node:assert/strict";
import test from "node:test";
import { layerSeriesFrom, traceScale, updateRatio } from "../../web/data/layer-series.js";

/** @param {import("../../web/data/json.js").JsonNumber[]} values */
const metric = (values) => ({ values, min: values, max: values });

test("metrics that nobody recorded are left out, values that are none stay none", () => {
  const series = layerSeriesFrom({ steps: [0, 8], cell: 8, absmax: metric([1, "NaN"]), zeros: metric([null, 0]), rms: metric([null, null]), headroom: metric(["Infinity", 3]) });
  assert.deepEqual(series.traces.map(({ name }) => name), ["headroom", "absmax", "zeros"]);
  assert.deepEqual(series.traces[0]?.mean, [Infinity, 3]);
  assert.deepEqual(series.traces[1]?.most, [1, NaN]);
  assert.deepEqual(series.traces[2]?.most, [undefined, 0]);
});

test("an update is set against the weight of the same cell", () => {
  const updates = { steps: [0, 16, 32], cell: 8, rms: { values: [0.01, 0.02, 0.5], min: [0.005, 0.02, 0.5], max: [0.02, 0.04, 0.5] } };
  const weights = { steps: [0, 16], cell: 16, rms: metric([1, 2]) };
  assert.deepEqual(updateRatio(updates, weights), { steps: [0, 16], cell: 8, trace: { name: "ratio", mean: [0.01, 0.01], least: [0.005, 0.01], most: [0.02, 0.02] } });
  assert.equal(updateRatio({ ...updates, steps: [] }, weights), null);
  assert.equal(updateRatio(updates, { steps: [0], cell: 1, rms: metric([0]) }), null, "nothing is divided by zero");
});

test("magnitudes are shown by octaves, all else as it is; what has no place is not drawn", () => {
  const magnitudes = traceScale({ name: "absmax", mean: [], least: [1, 0], most: [4, Infinity] });
  assert.deepEqual([magnitudes.low, magnitudes.high, magnitudes.at(2), magnitudes.at(0), magnitudes.at(Infinity)], [1, 4, 0.5, undefined, undefined]);
  const bits = traceScale({ name: "headroom", mean: [], least: [-1], most: [3] });
  assert.deepEqual([bits.at(1), bits.at(NaN)], [0.5, undefined]);
  assert.equal(traceScale({ name: "zeros", mean: [], least: [0], most: [0] }).at(0), 0.5);
});
