import assert from "node:assert/strict";
import test from "node:test";
import { bitsLeft, historySeries, operandKey, operandOf, operandRows, rateFrom, verdictOf } from "../../web/data/scaler.js";

/** @param {Partial<import("../../web/data/health.js").Alert>} more @returns {import("../../web/data/health.js").Alert} */
const alert = (more) => ({ id: 1, run: "r", kind: "nonfinite", severity: "info", state: "resolved", first_step: 10, last_step: 10, layer: null, rank: null, device: null, format: null, reason: "gradient_overflow", message: "", message_zh: "", ...more });

/** @param {Partial<import("../../web/data/scaler.js").Operand>} more @returns {import("../../web/data/scaler.js").Operand} */
const operand = (more) => ({ layer: "a", index: 0, kind: "act_in", format: "e4m3fn", scaling: "delayed", step: 1, absmax: 1, scale: 1, share: 0.5, nonfinite: 0, underflow: null, ...more });

test("of what the rules said of a step the gravest stands, a collapse before the overflows in it", () => {
  const overflow = alert({});
  const collapse = alert({ id: 2, kind: "loss_scale_collapse", severity: "critical", first_step: 22, last_step: 30, since_step: 18, reason: "many_skips" });
  const persistent = alert({ id: 3, severity: "critical", first_step: 20, last_step: 30, reason: "gradients_in_a_row" });
  const spike = alert({ id: 4, kind: "loss_spike", severity: "critical", first_step: 0, last_step: 99 });
  const all = [spike, overflow, persistent, collapse];
  assert.equal(verdictOf(10, all), overflow);
  assert.equal(verdictOf(18, all), collapse);
  assert.equal(verdictOf(25, all), collapse);
  assert.equal(verdictOf(11, all), null);
});

test("the skip rate has no envelope of its own", () => {
  const rate = rateFrom({ name: "skipped", cell: 8, steps: [0, 8], values: [0.25, 0], min: [0, 0], max: [1, 0] });
  assert.deepEqual([rate.values, rate.max], [[0.25, 0], [0.25, 0]]);
  assert.deepEqual(rateFrom(undefined).steps, []);
});

test("what fills its format by construction is not near its limit, what is not finite is beyond it", () => {
  const rows = [operand({ layer: "current", index: 0, scaling: "dynamic", share: 1 }), operand({ layer: "near", index: 1, share: 0.9 }), operand({ layer: "broken", index: 2, share: 0.1, nonfinite: 1 }), operand({ layer: "unread", index: 3, share: null, nonfinite: null })];
  assert.deepEqual(operandRows(rows, "", "").map(({ layer }) => layer), ["broken", "near", "current", "unread"]);
  assert.deepEqual(operandRows(rows, "NEA", "").map(({ layer }) => layer), ["near"]);
  assert.deepEqual(operandRows(rows, "", "layers"), rows);
  assert.equal(rows[0]?.layer, "current");
});

test("bits follow from the share", () => {
  assert.equal(bitsLeft(operand({ share: 0.25 })), 2);
  assert.equal(bitsLeft(operand({ share: 2 })), -1);
  assert.equal(bitsLeft(operand({ share: 0 })), Infinity);
  assert.equal(bitsLeft(operand({ nonfinite: 3 })), -Infinity);
  assert.equal(bitsLeft(operand({ share: null, nonfinite: null })), undefined);
});

test("an operand in the address may have any name", () => {
  const odd = operand({ layer: "a:b <i>", kind: "act_grad" });
  assert.deepEqual(operandOf(operandKey(odd)), { kind: "act_grad", layer: "a:b <i>" });
  assert.equal(operandOf(""), null);
});

test("a scale is drawn where a point is one step", () => {
  const envelope = { values: [1, null], min: [1, null], max: [1, null] };
  const answer = { layer: "a", kind: "act_in", format: "e4m3fn", scaling: "delayed", limit: 448, cell: 1, steps: [0, 1], absmax: envelope, headroom: envelope, scale: [2, 4] };
  assert.deepEqual(historySeries(answer).scale?.values, [2, 4]);
  assert.equal(historySeries({ ...answer, cell: 2 }).scale, null);
});
