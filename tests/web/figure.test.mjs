import assert from "node:assert/strict";
import test from "node:test";

import { figureOf } from "../../web/view/figure.js";

const INK = { trace: "#112233", warning: "#000000", critical: "#000000" };

const WORDS = { skipped: "", nonfinite: "", step: "", range: "", title: "" };
const PLACE = { left: 60, right: 10, width: 800 };

/** @param {object} change of what is drawn */
function drawn(change) {
  const data = { chart: { axis: "linear", height: 120 }, range: { from: 0, to: 99_999 }, alerts: [], skipped: [], lines: [], marks: undefined, words: WORDS, rev: 0, ...change };
  return /** @type {{ traces: any[], layout: any }} */ (figureOf(/** @type {any} */ (data), /** @type {any} */ (INK), PLACE));
}

/** @param {number[]} values @param {{ cell?: number, min?: number[], max?: number[], name?: string }} [more] */
function series(values, { cell = 1, min = values, max = values, name = "loss" } = {}) {
  return { name, cell, steps: values.map((_, i) => i * cell), values, min, max, weight: values.map(() => cell), nonfinite: [] };
}

test("a spike of one step among 100,000 stays on a log axis", () => {
  const steps = Array.from({ length: 800 }, (_, i) => i * 125);
  const flat = steps.map(() => 1);
  const max = flat.map((value, i) => (i === 400 ? 1000 : value));
  const values = flat.map((value, i) => (i === 400 ? (124 + 1000) / 125 : value));
  const { layout } = drawn({ chart: { axis: "log", height: 120 }, series: series(values, { cell: 125, min: flat, max }) });
  const [, top] = layout.yaxis.range;
  assert.equal(top >= 3, true);
  assert.equal(steps.length, 800);
});

test("the envelope is one closed outline for each stretch of finite cells", () => {
  const { traces } = drawn({ series: series([1, 2, NaN, 4], { cell: 10, min: [0, 1, NaN, 3], max: [2, 30, NaN, 5] }) });
  const outline = traces.find((trace) => trace.fill === "toself");
  assert.deepEqual(outline.x, [4.5, 14.5, 14.5, 4.5, 4.5, null, 34.5, 34.5, 34.5]);
  assert.deepEqual(outline.y, [0, 1, 30, 2, 0, null, 3, 5, 3]);
  assert.equal(outline.line.width, 1, "without an edge one cell is too thin to be seen");
});

test("means that differ in their last digits alone make a level line", () => {
  const { layout } = drawn({ series: series([1e-4, 1e-4 * (1 + 1e-13), 1e-4]) });
  assert.deepEqual(layout.yaxis.range, [0, 2e-4]);
});

test("labels of a log axis do not touch, and powers of ten are the last to go", () => {
  const { layout } = drawn({ chart: { axis: "log", height: 104 }, series: series([0.5, 1, 60]) });
  assert.deepEqual(layout.yaxis.tickvals.filter((/** @type {number} */ tick) => tick === 1 || tick === 10), [1, 10]);
  const places = layout.yaxis.tickvals.map((/** @type {number} */ tick) => (Math.log10(tick) / (layout.yaxis.range[1] - layout.yaxis.range[0])) * (104 - 10 - 22));
  for (const [i, place] of places.entries()) assert(i === 0 || place - places[i - 1] >= 14.9, String(places));
});

test("a few steps have a label each, and none twice", () => {
  assert.equal(drawn({ series: series([1]), range: { from: 0, to: 0 } }).layout.xaxis.dtick, 1);
  assert.equal(drawn({ series: series([1]) }).layout.xaxis.dtick, undefined);
});

test("a value without neighbours is a point", () => {
  const { traces } = drawn({ series: series([1, NaN, 3, 4]) });
  const points = traces.find((trace) => trace.mode === "markers" && trace.hoverinfo === "skip");
  assert.deepEqual([points.x, points.y], [[0], [1]]);
});

test("a limit far above the norms leaves the axis to them", () => {
  const line = (/** @type {number} */ limit) => ({ series: series([limit, limit], { name: "clip_norm" }), of: "values", dash: "dot", stroke: "", word: "" });
  const top = (/** @type {number} */ limit) => drawn({ chart: { axis: "log", height: 150 }, series: series([0.5, 1]), lines: [line(limit)] }).layout.yaxis.range[1];
  assert(top(10) > 1);
  assert(top(1e9) < 0.1);
});

test("each alert of its rules crosses the chart under the trace, every other one and a checkpoint touch its edge", () => {
  const alert = (/** @type {number} */ step) => ({ id: step, first_step: step, last_step: step, severity: "critical" });
  const marks = { alerts: [{ at: alert(100), n: 1 }, { at: alert(50_000), n: 3 }], saved: [{ first: 70_000, n: 1 }], sign: "" };
  const { shapes } = drawn({ series: series([1, 2]), alerts: [alert(100)], marks }).layout;
  assert.deepEqual(shapes.map((/** @type {any} */ { x0, y0, y1 }) => [x0, y0, y1]), [[100, 0, 1], [100, 0.94, 1], [50_000, 0.94, 1], [70_000, 0, 0.06]]);
  assert(shapes.every((/** @type {any} */ shape) => shape.layer === "below"));
});

test("many alerts of its rules leave the chart to its trace", () => {
  const alerts = Array.from({ length: 24 }, (_, i) => ({ id: i, first_step: i * 4000, last_step: i * 4000, severity: "critical" }));
  const { shapes } = drawn({ series: series([1, 2]), alerts, marks: { alerts: [], saved: [], sign: "" } }).layout;
  assert.equal(shapes.length, 24);
  assert(shapes.every((/** @type {any} */ { y0 }) => y0 > 0.8));
});
