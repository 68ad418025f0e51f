import assert from "node:assert/strict";
import test from "node:test";

import { cost, looksCloser } from "../../web/data/overhead.js";
import { fill } from "../../web/data/words.js";
import { en } from "../../web/i18n/en.js";
import { zh } from "../../web/i18n/zh.js";

/** @type {Record<string, string>} */
const words = en;
/** @type {Record<string, string>} */
const chinese = zh;
const t = (/** @type {string} */ key, /** @type {Record<string, string>} */ figures = {}) => fill(words[key] ?? key, figures);
const tz = (/** @type {string} */ key, /** @type {Record<string, string>} */ figures = {}) => fill(chinese[key] ?? key, figures);

test("the cost is shown beside its budget, in words too", () => {
  const found = cost({ share: 0.00612, budget: 0.01, limit: "" }, t);
  assert.equal(found?.text, "0.6 % of 1 %");
  assert.equal(found?.over, false);
  assert.match(found?.title ?? "", /0\.6 %.*1 %/);
  assert.match(cost({ share: 0.00612, budget: 0.01, limit: "" }, tz)?.text ?? "", /0\.6 %.*1 %/);
});

test("why it is over the budget is said", () => {
  const found = cost({ share: 0.123, budget: 0.005, limit: "gradients every 64 steps" }, t);
  assert.equal(found?.text, "12 % of 0.5 %");
  assert.equal(found?.over, true);
  assert.match(found?.title ?? "", /gradients every 64 steps/);
});

test("without a budget there is only the cost, and before it is known nothing", () => {
  assert.equal(cost({ share: 0.0004, budget: 0, limit: "" }, t)?.text, "0.04 %");
  assert.equal(cost({ share: 0, budget: 0.01, limit: "" }, t)?.text, "0.0 % of 1 %");
  assert.equal(cost(null, t), null);
  assert.equal(cost(undefined, t), null);
  assert.equal(cost({ share: null, budget: 0.01, limit: "" }, t), null);
});

test("the intervals in force are named, also without a budget and not where nothing is known", () => {
  const every = { activations: 64, gradients: 1, histograms: 128, updates: 0, weights: 100 };
  const list = "gradients every step, activations every 64 steps, weights every 100 steps, histograms every 128 steps";
  for (const budget of [0, 0.01]) {
    const found = cost({ share: 0.006, budget, limit: "", every }, t);
    assert(found?.title.endsWith(` Read at present: ${list}.`), found?.title);
    assert.match(cost({ share: 0.006, budget, limit: "", every }, tz)?.title ?? "", /梯度每步，激活每 64 步，权重每 100 步/);
  }
  assert.equal(cost({ share: 0.006, budget: 0, limit: "", every: {} }, t)?.title, "Watching takes 0.6 % of the step time; no budget is set.");
});

test("the newest event says whether a closer look is under way", () => {
  const begin = { kind: "focus", detail: { state: "begin", steps: 100 } };
  const end = { kind: "focus", detail: { state: "end" } };
  const other = { kind: "skipped", detail: {} };
  assert.equal(looksCloser(false, [begin, other]), true);
  assert.equal(looksCloser(true, [begin, end]), false);
  assert.equal(looksCloser(true, [other]), true);
  assert.equal(looksCloser(false, []), false);
});
