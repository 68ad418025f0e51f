import assert from "node:assert/strict";
import test from "node:test";
import { along, apart, listOf, namesIn, smoothed } from "../../web/data/compare.js";
import { HOME, formatRoute, parseRoute } from "../../web/data/route.js";
import { emptySeries } from "../../web/data/series.js";

/** @param {string} name @param {number} cell @param {number[]} values @returns {import("../../web/data/series.js").Series} */
const series = (name, cell, values) => ({ ...emptySeries(name), cell, steps: values.map((_, i) => i * cell), values, min: values, max: values });

test("names survive the address, whoever wrote it", () => {
  const names = ["a,b", "50% <b>&x=1", "plain", "100%25"];
  const route = { ...HOME, page: /** @type {const} */ ("compare"), own: { ...parseRoute("#/compare").own, runs: listOf(names) } };
  assert.deepEqual(namesIn(parseRoute(formatRoute(route)).own["runs"] ?? ""), names);
  assert.deepEqual(namesIn(parseRoute(`#/compare?x=time&runs=${names.map(encodeURIComponent).join(",")}`).own["runs"] ?? ""), names);
  assert.deepEqual(namesIn("a,a,b,%"), ["a", "b", "%"]);
  assert.equal(namesIn("0,1,2,3,4,5,6,7,8,9").length, 8);
});

test("steps lie on other axes where they were recorded, and are not made up beyond", () => {
  const runs = new Map([["tokens", series("tokens", 2, [100, 300])], ["step_time_s", series("step_time_s", 2, [0.5, 2])]]);
  const [tokens, time] = [along(runs, "tokens"), along(runs, "time")];
  assert.deepEqual([0, 1, 2, 3, 4].map((step) => tokens?.(step)), [NaN, 100, 200, 300, NaN]);
  assert.deepEqual([0, 1, 2, 3, 4, 5].map((step) => time?.(step)), [0, 0.5, 1, 3, 5, NaN]);
  assert.equal(along(new Map(), "tokens"), null);
  assert.equal(along(new Map([["tokens", series("tokens", 1, [NaN])]]), "tokens"), null);
});

test("a running mean looks back only, and neither hides nor spreads what is not finite", () => {
  assert.deepEqual(smoothed(series("loss", 1, [2, 4, NaN, 6, 8]), 2), [2, 3, NaN, 6, 7]);
  assert.deepEqual(smoothed(series("loss", 10, [2, 4]), 10), [2, 4]);
});

test("layers that both have are told apart, the largest difference first", () => {
  const a = { layers: [{ index: 0, name: "x" }, { index: 1, name: "y" }, { index: 2, name: "mine" }, { index: 3, name: "bad" }], columns: [0, 4, 8], cell: 4, values: [[1, 1, 1], [1, 2, 4], [1, 1, 1], [1, 1, 1]] };
  const b = { layers: [{ index: 0, name: "y" }, { index: 1, name: "x" }, { index: 2, name: "bad" }, { index: 3, name: "its" }], columns: [4, 8, 12], cell: 4, values: [[1, 1, 9], [2, null, 9], [/** @type {const} */ ("NaN"), 1, 1], [1, 1, 1]] };
  const found = apart(a, b, "absmax");
  assert.deepEqual(found.columns, [4, 8]);
  assert.deepEqual(found.rows.map(({ name, largest, at, broken }) => [name, largest, at, broken]), [["bad", 0, 8, 1], ["y", -2, 8, 0], ["x", 1, 4, 0]]);
  assert.deepEqual([found.onlyA, found.onlyB], [["mine"], ["its"]]);
  assert.equal(apart(a, b, "headroom").rows.find(({ name }) => name === "y")?.largest, -3);
});

test("of layers that are not finite on one side the largest difference comes first too", () => {
  const layers = ["a", "b", "c"].map((name, index) => ({ index, name }));
  const answer = (/** @type {import("../../web/data/json.js").JsonNumber[][]} */ values) => ({ layers, columns: [0, 1], cell: 1, values });
  const found = apart(answer([[1, "NaN"], [1, "NaN"], [1, 1]]), answer([[2, 1], [-4, 1], [90, 1]]), "headroom");
  assert.deepEqual(found.rows.map(({ name }) => name), ["b", "a", "c"]);
});
