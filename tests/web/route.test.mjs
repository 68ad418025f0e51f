import assert from "node:assert/strict";
import test from "node:test";
import { DESK } from "../../web/data/desk-route.js";
import { HOME, formatRoute, kindOf, parseRoute } from "../../web/data/route.js";

const RUN = { ...HOME, page: /** @type {const} */ ("run"), own: {} };

test("every view survives the way into the address and back", () => {
  /** @type {import("../../web/data/route.js").Route[]} */
  const views = [
    { ...HOME },
    { ...HOME, own: { ...HOME.own, sort: "headroom", order: "desc", state: "live,failed", tag: "a b", archived: "with" } },
    { ...RUN, run: "demo" },
    { ...RUN, run: "a/b c?d=1&e#f %25 调试 <x>", kind: "act_in", metric: "underflow", format: "e4m3fnuz" },
    { ...RUN, run: "a/b", tab: "layers", own: { filter: "a,b %&", group: "type", sort: "worst", open: "x%2Cy,z" }, layer: "x", from: 3 },
    { ...HOME, page: "alerts" },
    { ...HOME, page: "alerts", desk: { ...DESK, tab: "rules", run: "a/b &?=# \u8c03\u8bd5", kind: "loss_spike" } },
    { ...HOME, page: "alerts", desk: { ...DESK, state: "past", severity: "critical", order: "run", alert: "12" } },
    { ...HOME, page: "alerts", desk: { ...DESK, tab: "deliveries", endpoint: "3", outcome: "dead" } },
    { ...RUN, run: "demo", from: 0, to: 99, layer: "layers.3.mlp.down_proj", step: 0 },
  ];
  for (const view of views) assert.deepEqual(parseRoute(formatRoute(view)), view);
});

test("defaults stay out of the address", () => {
  assert.equal(formatRoute({ ...HOME }), "#/");
  assert.equal(formatRoute({ ...RUN, run: "demo" }), "#/run/demo");
});

test("what a stranger typed falls back instead of breaking", () => {
  assert.deepEqual(parseRoute(""), { ...HOME });
  assert.deepEqual(parseRoute("#/nowhere?kind=%"), { ...HOME });
  assert.deepEqual(parseRoute("#/run/"), { ...HOME });
  assert.equal(parseRoute("#/run/50%").run, "50%");
  assert.equal(parseRoute("#/run/x/nowhere").tab, "overview");
  assert.equal(parseRoute("#/run/x?metric=constructor").metric, "headroom");
  assert.deepEqual(parseRoute("#/run/x?from=-1&to=1e9&step=abc"), { ...RUN, run: "x" });
  assert.equal(parseRoute("#/run/x?from=9&to=3").to, null);
  assert.deepEqual(parseRoute("#/run/x?format=fp7&layer="), { ...RUN, run: "x" });
  assert.deepEqual(parseRoute("#/alerts/nowhere?state=x&severity=grave&order=&alert=1e9&endpoint=-1&outcome=lost"), { ...HOME, page: "alerts" });
});

test("a run opens on the kind with its worst headroom, and waits for its first step before it says which", () => {
  /** @type {import("../../web/data/types.js").RunItem} */
  const run = {
    name: "r", state: "live", attempt: 1, steps: 3, started_at: null, heartbeat_at: null, finished_at: null, sparkline: [], overhead: null, world: 1, missing_ranks: [], max_steps: null, pace: null, chips: [], precision: { declared: null, executed: {}, unmet: 0 }, tags: [], archived_at: null,
    last: { loss: null, grad_norm: null, loss_scale: null }, worst: { headroom: "-Infinity", layer: "a", kind: "act_in", step: 2 },
    alerts: { critical: 0, warning: 0, info: 0 }, alerts_past: { critical: 0, warning: 0, info: 0 },
  };
  assert.equal(HOME.kind, "auto");
  assert.equal(parseRoute("#/run/r").kind, "auto");
  assert.equal(kindOf(run), "act_in");
  assert.equal(kindOf({ ...run, worst: null }), "grad");
  assert.equal(kindOf({ ...run, worst: { headroom: 1, layer: "a", kind: "update", step: 2 } }), "grad");
  assert.equal(kindOf({ ...run, worst: null, steps: 0 }), "auto");
  assert.equal(kindOf({ ...run, worst: { headroom: "-Infinity", layer: "a", kind: "act", step: 2 } }), "act_in");
  assert.equal(kindOf(null), "auto");
});

test("the update ratio goes with updates; a link to another kind leaves it", () => {
  assert.equal(parseRoute("#/run/r?metric=ratio").kind, "update");
  assert.equal(formatRoute({ ...RUN, run: "r", kind: "act", metric: "ratio" }), "#/run/r?kind=act");
  assert.equal(parseRoute("#/run/r?metric=ratio&kind=act").metric, "headroom");
  assert.equal(formatRoute({ ...RUN, run: "r", kind: "update", metric: "ratio" }), "#/run/r?kind=update&metric=ratio");
});
