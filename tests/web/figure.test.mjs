import assert from "node:assert/strict";
import test from "node:test";

import { figureOf } from "../../web/view/figure.js";

const INK = { trace: "#112233", warning: "#000000", critical: "#000000" };

test("a spike of one step among 100,000 stays on a log axis", () => {
  const steps = Array.from({ length: 800 }, (_, i) => i * 125);
  const flat = steps.map(() => 1);
  const max = flat.map((value, i) => (i === 400 ? 1000 : value));
  const values = flat.map((value, i) => (i === 400 ? (124 + 1000) / 125 : value));
  const series = { name: "grad_norm", cell: 125, steps, values, min: flat, max, weight: steps.map(() => 125), nonfinite: [] };
  const words = { skipped: "", nonfinite: "", step: "", range: "", title: "" };
  const data = /** @type {any} */ ({ chart: { axis: "log", height: 120 }, series, range: { from: 0, to: 99_999 }, alerts: [], skipped: [], words, rev: 0 });
  const { layout } = figureOf(data, /** @type {any} */ (INK), { left: 60, right: 10, width: 800 });
  const [, top] = /** @type {any} */ (layout).yaxis.range;
  assert.equal(top >= 3, true);
});
