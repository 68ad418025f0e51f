import assert from "node:assert/strict";
import test from "node:test";
import { layerSeriesFrom, traceScale } from "../../web/data/layer-series.js";

/** @param {import("../../web/data/json.js").JsonNumber[]} values */
const metric = (values) => ({ values, min: values, max: values });

test("metrics that nobody recorded are left out, values that are none stay none", () => {
  const series = layerSeriesFrom({ steps: [0, 8], cell: 8, absmax: metric([1, "NaN"]), zeros: metric([null, 0]), rms: metric([null, null]), headroom: metric(["Infinity", 3]) });
  assert.deepEqual(series.traces.map(({ name }) => name), ["headroom", "absmax", "zeros"]);
  assert.deepEqual(series.traces[0]?.mean, [Infinity, 3]);
  assert.deepEqual(series.traces[1]?.most, [1, NaN]);
  assert.deepEqual(series.traces[2]?.most, [undefined, 0]);
});

test("of another question other metrics are taken", () => {
  const answer = { steps: [0], cell: 1, ratio: metric([1e-3]), rms: metric([1]) };
  assert.deepEqual(layerSeriesFrom(answer, ["ratio"]).traces.map(({ name }) => name), ["ratio"]);
});

test("magnitudes are shown by octaves, all else as it is; what has no place is not drawn", () => {
  const magnitudes = traceScale({ name: "absmax", mean: [], least: [1, 0], most: [4, Infinity] });
  assert.deepEqual([magnitudes.low, magnitudes.high, magnitudes.at(2), magnitudes.at(0), magnitudes.at(Infinity)], [1, 4, 0.5, undefined, undefined]);
  const bits = traceScale({ name: "headroom", mean: [], least: [-1], most: [3] });
  assert.deepEqual([bits.at(1), bits.at(NaN)], [0.5, undefined]);
  assert.equal(traceScale({ name: "zeros", mean: [], least: [0], most: [0] }).at(0), 0.5);
});
