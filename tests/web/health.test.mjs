import assert from "node:assert/strict";
import test from "node:test";
import { attemptOf, overtaken } from "../../web/data/attempts.js";
import { reconnectDelay } from "../../web/data/backoff.js";
import { familyOf, firstCritical, lanes, ordered, tensorOf, withAlert } from "../../web/data/health.js";
import { createStore } from "../../web/data/store.js";
import * as text from "../../web/data/text.js";
import { linearTicks, stepTicks } from "../../web/data/ticks.js";

/** @param {Partial<import("../../web/data/health.js").Alert>} fields @returns {import("../../web/data/health.js").Alert} */
function alert(fields) {
  return {
    id: 1, run: "r", kind: "limit_near", severity: "warning", state: "firing", first_step: 5, last_step: 9,
    layer: null, rank: null, device: null, format: null, reason: "", message: "", message_zh: "", ...fields,
  };
}

test("one lane a family: touching stretches join, the worst is drawn last, resolved ones do not count as open", () => {
  const [limits] = lanes([
    alert({ id: 1 }),
    alert({ id: 2, first_step: 10, last_step: 12 }),
    alert({ id: 3, kind: "limit_crossed", severity: "critical", first_step: 8, last_step: 20, state: "resolved" }),
  ]);
  assert(limits);
  assert.equal(limits.worst, "warning");
  assert.equal(limits.open, 2);
  assert.deepEqual(limits.stretches, [
    { from: 5, to: 12, severity: "warning", count: 2 },
    { from: 8, to: 20, severity: "critical", count: 1 },
  ]);
  assert.equal(familyOf("gpu_fault"), "system");
});

test("alerts: the first critical one, then open before resolved and newest first", () => {
  const list = [
    alert({ id: 1, first_step: 2, state: "resolved" }),
    alert({ id: 2, first_step: 3, state: "resolved", severity: "critical" }),
    alert({ id: 3, first_step: 3, severity: "critical" }),
    alert({ id: 4, first_step: 9, severity: "info" }),
    alert({ id: 5, first_step: 12, acknowledged_at: "2026-01-01T00:00:00Z" }),
    alert({ id: 6, first_step: 7, state: "resolved", severity: "critical" }),
  ];
  assert.deepEqual(ordered(list).map(({ id }) => id), [2, 4, 3, 5, 6, 1]);
  assert.equal(firstCritical(list)?.id, 2);
  assert.equal(firstCritical([alert({})]), null);
});

test("an alert belongs to the attempt it opened in, and is overtaken when its steps are made again", () => {
  const attempts = [
    { n: 1, first_step: 0, started_at: "2026-01-01T00:00:00Z" },
    { n: 2, first_step: 50, started_at: "2026-01-01T01:00:00Z" },
    { n: 3, first_step: null, started_at: "2026-01-01T02:00:00Z" },
  ];
  const first = (/** @type {number} */ step) => alert({ first_step: step, opened_at: "2026-01-01T00:30:00Z" });
  assert.equal(attemptOf(first(3), attempts), 1);
  assert.equal(attemptOf(alert({ opened_at: "2026-01-01T01:00:00Z" }), attempts), 2);
  assert.equal(attemptOf(alert({ attempt: 1, opened_at: "2026-01-01T01:00:00Z" }), attempts), 1);
  assert.equal(attemptOf(first(3), []), null);
  assert.deepEqual([overtaken(first(49), attempts), overtaken(first(50), attempts)], [false, true]);
  assert.equal(overtaken(alert({ first_step: 70, opened_at: "2026-01-01T01:30:00Z" }), attempts), false);
});

test("an updated alert takes the place of its former self", () => {
  const list = [alert({ id: 1, state: "resolved", severity: "critical" }), alert({ id: 2 }), alert({ id: 3, severity: "critical" })];
  assert.deepEqual(withAlert(list, alert({ id: 2, state: "resolved" })).map(({ state }) => state), ["resolved", "resolved", "firing"]);
  assert.equal(withAlert(list, alert({ id: 4 })).length, 4);
});

test("an alert is about one kind of tensor or about none", () => {
  assert.equal(tensorOf(alert({ detail: { tensor: "act_in" } })), "act_in");
  assert.equal(tensorOf(alert({ detail: { tensor: "loss" } })), null);
  assert.equal(tensorOf(alert({ detail: {} })), null);
  assert.equal(tensorOf(alert({})), null);
});

test("the store tells its listeners once of many changes, with the last state", () => {
  /** @type {(() => void)[]} */
  const queue = [];
  const store = createStore({ a: 1, b: 1 }, (flush) => queue.push(flush));
  /** @type {unknown[]} */
  const seen = [];
  const stop = store.subscribe((state) => seen.push(state));
  store.set({ a: 2 });
  store.set({ b: 3 });
  assert.equal(queue.length, 1);
  queue[0]?.();
  assert.deepEqual(seen, [{ a: 2, b: 3 }]);
  stop();
  store.set({ a: 4 });
  queue[1]?.();
  assert.equal(seen.length, 1);
});

test("reconnects back off to a bound", () => {
  assert.equal(reconnectDelay(0, 0), 100);
  assert.equal(reconnectDelay(0, 1), 600);
  assert.equal(reconnectDelay(99, 1), 15_100);
});

test("ticks are round and inside", () => {
  assert.deepEqual(linearTicks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(stepTicks(3, 5, 8), [3, 4, 5]);
  assert.deepEqual(stepTicks(990, 2600, 4), [1000, 1500, 2000, 2500]);
});

test("figures as an instrument shows them", () => {
  assert.equal(text.bits(-0.44), "\u22120.4");
  assert.equal(text.bits(0.04), "0.0");
  assert.equal(text.bits(-0.04), "0.0");
  assert.equal(text.bits(-Infinity), "\u2212\u221e");
  assert.equal(text.bits(undefined), "\u2014");
  assert.equal(text.figure(2.34567), "2.346");
  assert.equal(text.figure(12345.6), "12346");
  assert.equal(text.figure(-0.00001234), "\u22121.23e\u22125");
  assert.equal(text.powerOfTwo(65536), "2\u00b9\u2076");
  assert.equal(text.powerOfTwo(0.5), "2\u207b\u00b9");
  assert.equal(text.powerOfTwo(3), "3.000");
  assert.equal(text.powerOfTwo(1), "1");
  // Rounded up, the next power of ten has no digit more.
  assert.deepEqual([0.99999, 9.9999, 99.999, 0.999, 12345.6].map(text.figure), ["1.000", "10.00", "100.0", "0.9990", "12346"]);
  assert.equal(text.percent(0.1234), "12.3 %");
  assert.equal(text.percent(0.00123), "0.12 %");
  assert.equal(text.duration(3725), "01:02:05");
  assert.equal(text.duration(90061), "1d 01:01");
  assert.equal(text.tail("layers.3.mlp.down_proj", 10), "\u2026down_proj");
});
