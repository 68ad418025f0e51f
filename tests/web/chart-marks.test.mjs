import assert from "node:assert/strict";
import test from "node:test";

import { alertStep, alertWeight, marksOf, savedSteps } from "../../web/data/chart-marks.js";

const RANGE = { from: 0, to: 99_999 };

/** @param {number} step @param {"critical" | "warning" | "info"} severity */
const alert = (step, severity) => /** @type {any} */ ({ id: step, first_step: step, last_step: step, severity, state: "firing" });

test("marks that would lie over one another become one, and each thing is counted in one", () => {
  const alerts = Array.from({ length: 1000 }, (_, i) => alert(i * 100, i === 503 ? "critical" : "info"));
  const marks = marksOf(alerts, alertStep(RANGE), RANGE, 800, alertWeight);
  assert.equal(marks.reduce((sum, mark) => sum + mark.n, 0), 1000);
  assert(marks.length <= 31 && marks.length > 20, String(marks.length));
  for (const [i, mark] of marks.entries()) assert(i === 0 || (mark.share - (marks[i - 1]?.share ?? 0)) * 800 >= 26);
  const grave = marks.filter(({ at }) => at.severity === "critical");
  assert.equal(grave.length, 1);
  assert(grave[0] && grave[0].first <= 50_300 && grave[0].last >= 50_300, "the gravest one stands for all");
});

test("what lies apart keeps a mark of its own, in the middle of its step, whatever order it came in", () => {
  const marks = marksOf([alert(75, "info"), alert(200, "info"), alert(25, "warning")], alertStep({ from: 0, to: 99 }), { from: 0, to: 99 }, 800);
  assert.deepEqual(marks.map(({ first, share, n }) => [first, share, n]), [[25, 0.255, 1], [75, 0.755, 1]]);
});

test("an alert that is open since before the range is marked where the range begins, one that has ended is not", () => {
  const range = { from: 50, to: 99 };
  const open = { ...alert(10, "critical"), last_step: 60 };
  const marks = marksOf([open, alert(20, "info")], alertStep(range), range, 800);
  assert.deepEqual(marks.map(({ at, first }) => [at.id, first]), [[10, 50]]);
});

test("a checkpoint of many ranks is one, and one that a later attempt made again is none", () => {
  const saved = [0, 1, 2].map((rank) => ({ step: 99, attempt: 1, rank, detail: { path: `rank-${rank}` } }));
  const attempts = [{ n: 1, first_step: 0, started_at: "" }, { n: 2, first_step: 100, started_at: "" }];
  const found = savedSteps([...saved, { step: 149, attempt: 1, rank: 0, detail: { path: "gone" } }, { step: 199, attempt: 2, rank: 0, detail: { name: "checkpoint-200" } }], attempts);
  assert.deepEqual(found, [{ step: 99, paths: ["rank-0", "rank-1", "rank-2"] }, { step: 199, paths: ["checkpoint-200"] }]);
});
