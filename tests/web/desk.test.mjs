import assert from "node:assert/strict";
import test from "node:test";
import { DESK } from "../../web/data/desk-route.js";
import { alertsShown, choices, covers, openTally, otherLayers, perState, together, whoDid } from "../../web/data/desk.js";

/** @param {Partial<import("../../web/data/health.js").Alert>} given @returns {import("../../web/data/health.js").Alert} */
const alert = (given) => ({
  id: 1, run: "r", kind: "loss_spike", severity: "warning", state: "firing", first_step: 5, last_step: 5, layer: null, rank: 0, device: null, format: null, reason: "", message: "", message_zh: "", ...given,
});
/** @param {import("../../web/data/health.js").Alert[]} alerts */
const ids = (alerts) => alerts.map(({ id }) => id);

const ALERTS = [
  alert({ id: 9, severity: "info", run: "b", kind: "stalled", first_step: 2 }),
  alert({ id: 8, severity: "critical", state: "resolved", resolved_reason: "cleared", first_step: 7 }),
  alert({ id: 7, severity: "warning", state: "resolved", resolved_reason: "superseded" }),
  alert({ id: 6, severity: "critical", run: "a", first_step: 3 }),
];

test("a list shows what is asked for, in the order asked for", () => {
  assert.deepEqual(ids(alertsShown(ALERTS, DESK)), [9, 6]);
  assert.deepEqual(ids(alertsShown(ALERTS, { ...DESK, state: "past" })), [8]);
  assert.deepEqual(ids(alertsShown(ALERTS, { ...DESK, state: "all", order: "severity" })), [8, 6, 9]);
  assert.deepEqual(ids(alertsShown(ALERTS, { ...DESK, state: "all", order: "run" })), [6, 9, 8]);
  assert.deepEqual(ids(alertsShown(ALERTS, { ...DESK, state: "all", order: "step" })), [8, 6, 9]);
  assert.deepEqual(ids(alertsShown(ALERTS, { ...DESK, severity: "critical", run: "a" })), [6]);
  assert.deepEqual(ids(alertsShown(ALERTS, { ...DESK, kind: "stalled" })), [9]);
  assert.deepEqual(ids(ALERTS), [9, 8, 7, 6], "the data itself stays as it is");
});

test("an alert that gained severity counts once, as what it became", () => {
  assert.deepEqual(perState(ALERTS, DESK), { open: 2, past: 1, all: 3 });
  assert.deepEqual(perState(ALERTS, { ...DESK, run: "a", state: "past" }), { open: 1, past: 0, all: 1 });
});

test("what is open is never lost behind what is past", () => {
  assert.deepEqual(ids(together([alert({ id: 3 })], [alert({ id: 9, state: "resolved" }), alert({ id: 8, state: "resolved" })])), [9, 8, 3]);
  const [one] = together([alert({ id: 3 })], [alert({ id: 3, state: "resolved" })]);
  assert.equal(one?.state, "firing");
});

test("a choice that no alert has any more can still be seen and taken back", () => {
  assert.deepEqual(choices(["b", "a", "b"], ""), ["a", "b"]);
  assert.deepEqual(choices(["b"], "gone"), ["b", "gone"]);
});

test("the audit log says who; the newest line counts", () => {
  const line = { id: 1, at: "", action: "alert.acknowledge", subject: "6" };
  assert.equal(whoDid([{ ...line, actor: "token b" }, { ...line, actor: "token a" }], "alert.acknowledge", 6), "token b");
  assert.equal(whoDid([{ ...line, actor: "local" }], "alert.resolve", 6), null);
  assert.equal(whoDid(null, "alert.acknowledge", 6), null);
});

test("a silence covers what it names, until it ends", () => {
  const silence = { id: 1, run: null, kind: "loss_spike", layer: null, until: "2026-01-01T00:00:10Z", comment: "", created_at: "" };
  const before = Date.parse("2026-01-01T00:00:09Z");
  assert(covers(silence, alert({}), before));
  assert(!covers(silence, alert({}), before + 1000));
  assert(!covers(silence, alert({ kind: "stalled" }), before));
  assert(!covers({ ...silence, run: "other" }, alert({}), before));
  assert(!covers({ ...silence, layer: "a" }, alert({ layer: "b" }), before));
});

test("the frame tells how many are open and how grave the worst is", () => {
  /** @param {number} critical @param {number} warning @param {number} info */
  const run = (critical, warning, info) => /** @type {import("../../web/data/types.js").RunItem} */ ({ alerts: { critical, warning, info } });
  assert.deepEqual(openTally([run(0, 2, 1), run(0, 0, 4)]), { open: 7, worst: "warning" });
  assert.deepEqual(openTally([run(1, 0, 0)]), { open: 1, worst: "critical" });
  assert.deepEqual(openTally([]), { open: 0, worst: null });
});

test("the layer that an alert names is none of the others", () => {
  assert.deepEqual(otherLayers(alert({ layer: "a", detail: { layers: ["a", "b"] } })), ["b"]);
  assert.deepEqual(otherLayers(alert({ layer: null, detail: { layers: ["a", "b"] } })), ["a", "b"]);
  assert.deepEqual(otherLayers(alert({ layer: "a" })), []);
});
