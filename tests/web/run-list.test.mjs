import assert from "node:assert/strict";
import test from "node:test";
import { namesIn, namesText } from "../../web/data/arrange.js";
import { HOME, formatRoute, parseRoute } from "../../web/data/route.js";
import { allToggled, filtered, found, narrowing, offered, orderOf, reordered, sorted, stateToggled, tagIn, tallied, toggled, windowOf } from "../../web/data/run-list.js";
import { RUN_SORTS } from "../../web/data/tab-fields.js";

/** @typedef {import("../../web/data/types.js").RunItem} RunItem */

/** @param {string} name @param {Partial<RunItem>} [more] @returns {RunItem} */
const run = (name, more = {}) => ({
  name, state: "live", attempt: 1, steps: 3, started_at: null, heartbeat_at: null, finished_at: null, sparkline: [], overhead: null, world: 1, missing_ranks: [],
  last: { loss: null, grad_norm: null, loss_scale: null }, worst: null, max_steps: null, pace: null,
  alerts: { critical: 0, warning: 0, info: 0 }, alerts_past: { critical: 0, warning: 0, info: 0 },
  chips: [], precision: { declared: null, executed: {}, unmet: 0 }, tags: [], archived_at: null, ...more,
});
/** @param {string} layer @param {import("../../web/data/json.js").JsonNumber} headroom */
const worst = (layer, headroom = 1) => ({ worst: { headroom, layer, kind: "grad", step: 2 } });
/** @param {Record<string, string>} own */
const own = (own = {}) => ({ ...HOME.own, ...own });
/** @param {readonly RunItem[]} runs */
const names = (runs) => runs.map(({ name }) => name).join(" ");

const MIXED = [
  run("llama-fp8", { ...worst("layers.3.down", "-Infinity"), tags: ["baseline", "a b"], chips: [{ name: "AMD Instinct MI300X", count: 8 }], precision: { declared: "fp8", executed: { bf16: 9 }, unmet: 9 }, alerts: { critical: 2, warning: 0, info: 0 } }),
  run("llama-bf16", { state: "finished", archived_at: "2026-01-01T00:00:00Z", precision: { declared: null, executed: { bf16: 2 }, unmet: 0 } }),
  run("qwen", { ...worst("head", 7), state: "failed", tags: ["a b"], alerts: { critical: 0, warning: 1, info: 0 }, precision: { declared: null, executed: { e4m3fn: 1, bf16: 4 }, unmet: 0 } }),
];

test("a run is found by words in what the list says of it, in any order", () => {
  const by = (/** @type {string} */ find) => names(found(MIXED, find));
  assert.equal(by(""), "llama-fp8 llama-bf16 qwen");
  assert.equal(by("LIVE llama"), "llama-fp8");
  assert.equal(by("down"), "llama-fp8");
  assert.equal(by("baseline mi300"), "llama-fp8");
  assert.equal(by("nothing"), "");
});

test("each filter lets through what it names, and archived runs only where they are asked for", () => {
  const by = (/** @type {Record<string, string>} */ wanted) => names(filtered(MIXED, own(wanted)));
  assert.equal(by({}), "llama-fp8 qwen");
  assert.equal(by({ archived: "with" }), "llama-fp8 llama-bf16 qwen");
  assert.equal(by({ archived: "only" }), "llama-bf16");
  assert.equal(by({ state: "failed,lost" }), "qwen");
  assert.equal(by({ tag: "a b" }), "llama-fp8 qwen");
  assert.equal(by({ tag: "a" }), "");
  assert.equal(by({ chip: "AMD Instinct MI300X" }), "llama-fp8");
  assert.equal(by({ precision: "fp8" }), "qwen");
  assert.equal(by({ precision: "bf16", archived: "with" }), "llama-fp8 llama-bf16");
  assert.equal(by({ precision: "unmet" }), "llama-fp8");
  assert.equal(by({ alerts: "open" }), "llama-fp8 qwen");
  assert.equal(by({ alerts: "critical" }), "llama-fp8");
  assert.equal(by({ alerts: "none", archived: "with" }), "llama-bf16");
  assert.equal(by({ find: "qwen", state: "live" }), "");
  assert.deepEqual(narrowing(own({ find: "x", sort: "name", archived: "with" })), ["find"]);
});

test("a state has a button with how many the other filters leave of it", () => {
  assert.deepEqual([...tallied(filtered(MIXED, own({ state: "live", tag: "a b" }), true))], [["live", 1], ["stalled", 0], ["finished", 0], ["failed", 1], ["lost", 0]]);
  assert.equal(stateToggled("", "failed"), "failed");
  assert.equal(stateToggled("failed", "live"), "live,failed");
  assert.equal(stateToggled("live,failed", "failed"), "live");
});

test("what can be chosen is what there is", () => {
  assert.deepEqual(offered(MIXED), { tags: ["a b", "baseline"], chips: ["AMD Instinct MI300X"], precisions: ["bf16", "fp8"] });
});

test("every column sorts in both directions, and what is not known is last in either", () => {
  const at = (/** @type {number} */ minute) => `2026-01-01T00:${String(minute).padStart(2, "0")}:00Z`;
  const runs = [
    run("run 10", { ...worst("b", "NaN"), steps: 5, max_steps: 100, pace: { seconds_per_step: 2, steps: 9, seconds: 18 }, started_at: at(1), finished_at: at(9), last: { loss: 2, grad_norm: null, loss_scale: null }, tags: ["z"], chips: [{ name: "A", count: 1 }] }),
    run("run 9", { ...worst("a", "-Infinity"), steps: 7, max_steps: 8, pace: { seconds_per_step: 2, steps: 9, seconds: 18 }, started_at: at(3), finished_at: at(4), last: { loss: "Infinity", grad_norm: null, loss_scale: null }, state: "live", tags: ["a"], chips: [{ name: "B", count: 1 }], precision: { declared: "bf16", executed: {}, unmet: 0 }, alerts: { critical: 0, warning: 3, info: 0 } }),
    run("run 8", { state: "lost", alerts: { critical: 1, warning: 0, info: 0 } }),
  ];
  const order = (/** @type {string} */ sort, /** @type {string} */ way) => sorted(runs, own({ sort, order: way }), 0).map(({ name }) => name.slice(4)).join();
  assert.deepEqual([order("name", "asc"), order("name", "desc")], ["8,9,10", "10,9,8"]);
  assert.deepEqual([order("headroom", "asc"), order("headroom", "desc")], ["10,9,8", "10,9,8"]);
  assert.deepEqual([order("alerts", "desc"), order("alerts", "asc")], ["8,9,10", "10,9,8"]);
  assert.deepEqual([order("step", "desc"), order("step", "asc")], ["9,10,8", "8,10,9"]);
  assert.deepEqual([order("left", "asc"), order("left", "desc")], ["9,10,8", "10,9,8"]);
  assert.deepEqual([order("loss", "asc"), order("loss", "desc")], ["10,9,8", "9,10,8"]);
  assert.deepEqual([order("started", "desc"), order("started", "asc")], ["9,10,8", "10,9,8"]);
  assert.deepEqual([order("duration", "asc"), order("duration", "desc")], ["9,10,8", "10,9,8"]);
  assert.deepEqual([order("state", "asc"), order("tags", "asc"), order("chip", "asc"), order("layer", "asc"), order("precision", "asc")], ["10,9,8", "9,10,8", "10,9,8", "9,10,8", "9,10,8"]);
  for (const sort of Object.keys(RUN_SORTS)) assert.equal(sorted(runs, own({ sort }), 0).length, 3, sort);
});

test("a column sorts in its own direction first, then in the other, and the address has no more than it needs", () => {
  assert.deepEqual(orderOf(own()), { by: "started", order: "desc" });
  assert.deepEqual(reordered(own(), "headroom"), { sort: "headroom", order: "" });
  assert.deepEqual(reordered(own({ sort: "headroom" }), "headroom"), { sort: "headroom", order: "desc" });
  assert.deepEqual(reordered(own({ sort: "headroom", order: "desc" }), "headroom"), { sort: "headroom", order: "" });
  assert.deepEqual(reordered(own(), "started"), { sort: "", order: "asc" });
  const address = formatRoute({ ...HOME, own: own({ sort: "loss", order: "desc", state: "live,failed", precision: "unmet" }) });
  assert.deepEqual(orderOf(parseRoute(address).own), { by: "loss", order: "desc" });
  assert.equal(formatRoute(parseRoute("#/?sort=nothing&order=up&state=gone&alerts=x")), "#/");
});

test("a long list is drawn where it is looked at, a short one whole", () => {
  assert.deepEqual(windowOf(80, 40, 16), { from: 0, to: 80 });
  assert.deepEqual(windowOf(500, 0, 16), { from: 0, to: 28 });
  assert.deepEqual(windowOf(500, 200, 16), { from: 188, to: 228 });
  assert.deepEqual(windowOf(500, 484, 16), { from: 472, to: 500 });
  // Filtered while far down.
  assert.deepEqual(windowOf(100, 484, 16), { from: 72, to: 100 });
});

test("500 runs are filtered and sorted, names by their numbers", () => {
  const runs = Array.from({ length: 500 }, (_, i) => run(`run ${(i * 7919) % 500}`, { steps: (i * 31) % 97, tags: [`t${i % 5}`], started_at: new Date(1e12 + i * 1000).toISOString() }));
  assert.equal(filtered(runs, own({ tag: "t3" })).length, 100);
  const byName = sorted(runs, own({ sort: "name" }), 0);
  assert.deepEqual(byName.map(({ name }) => name), Array.from({ length: 500 }, (_, i) => `run ${i}`));
  assert.deepEqual([byName[0]?.name, sorted(runs, own(), 0)[0]?.started_at], ["run 0", new Date(1e12 + 499_000).toISOString()]);
});

test("runs are picked one by one or all that are shown, and hostile names survive the address", () => {
  const picked = toggled(["a,b", "50%"], "<x>&=#");
  assert.deepEqual(toggled(picked, "50%"), ["a,b", "<x>&=#"]);
  assert.deepEqual(allToggled(["a", "x"], ["a", "b"]), ["a", "x", "b"]);
  assert.deepEqual(allToggled(["a", "x", "b"], ["a", "b"]), ["x"]);
  const route = parseRoute(formatRoute({ ...HOME, own: own({ pick: namesText(picked), tag: "<b>&=#", chip: "a,b%" }) }));
  assert.deepEqual(namesIn(route.own["pick"] ?? ""), picked);
  assert.deepEqual([route.own["tag"], route.own["chip"]], ["<b>&=#", "a,b%"]);
});

test("a tag is one line without commas, of forty characters at most", () => {
  assert.deepEqual([tagIn("  a ,  b\t"), tagIn(" , "), tagIn("x".repeat(40)).length, tagIn("x".repeat(41))], ["a b", "", 40, ""]);
});
