import assert from "node:assert/strict";
import test from "node:test";
import { arrange, matcher, namesIn, namesText } from "../../web/data/arrange.js";
import { MISSING_BITS, bitsOf } from "../../web/data/fsb1.js";
import { gridFrom, valueAt } from "../../web/data/grid.js";

const NAMES = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"];
const TYPES = new Map(NAMES.map((name) => [name, name.endsWith("up") ? "Up" : "Linear"]));
const ALL = { filter: "", group: "", sort: "", open: [] };

/** Rows of two columns each. @param {"min" | "max"} worst @param {readonly (number | null)[]} values null: missing */
function grid(worst, values) {
  const cells = new Float32Array(values.length);
  const bits = bitsOf(cells);
  values.forEach((value, i) => (value === null ? (bits[i] = MISSING_BITS) : (cells[i] = value)));
  const layers = NAMES.map((name, i) => ({ index: i, name, format: i === 4 ? "bf16" : "e5m2", order: i }));
  return gridFrom({ kind: "grad", metric: "headroom", format: "auto", unit: "bits", worst, cell: 1, columns: [0, 1], layers, last_step: 1 }, cells);
}

const HEADROOM = grid("min", [5, 4, 3, 9, 8, NaN, 2, null, null, null]);
/** @param {import("../../web/data/arrange.js").Arrangement} wanted */
const names = (wanted) => arrange(HEADROOM, wanted, TYPES).lines.map(({ name }) => name);

test("a filter is a part of a name, or a whole one with wildcards; nothing in it is a pattern otherwise", () => {
  assert.deepEqual(names({ ...ALL, filter: "DOWN" }), ["blocks.0.down", "blocks.1.down"]);
  assert.deepEqual(names({ ...ALL, filter: "blocks.?.up" }), ["blocks.0.up", "blocks.1.up"]);
  assert.deepEqual(names({ ...ALL, filter: "*0*" }), ["blocks.0.up", "blocks.0.down"]);
  assert.deepEqual(names({ ...ALL, filter: "0.*" }), []);
  assert(matcher("a.(b")("x.a.(b"));
  assert(!matcher("a.b?")("aXbc"));
  for (const [pattern, name] of [["*a*b", "xaabab"], ["?*?", "ab"], ["**", ""], ["a*", "a"], ["*\n?", "a\nb"]]) assert(matcher(pattern ?? "")(name ?? ""), pattern);
  for (const [pattern, name] of [["?*?", "a"], ["*a*b", "xaba"], ["?", ""], ["a*a", "a"]]) assert(!matcher(pattern ?? "")(name ?? ""), pattern);
});

test("a filter of many wildcards takes no longer than another", () => {
  assert(!matcher(`${"*?".repeat(12)}*z`)("model.layers.377.attention.query_key_value"));
});

test("the worst comes first, what is not finite before it, what was not seen last", () => {
  assert.deepEqual(names({ ...ALL, sort: "worst" }), ["blocks.1.up", "blocks.1.down", "blocks.0.down", "blocks.0.up", "head"]);
  assert.deepEqual(names({ ...ALL, sort: "name" }), ["blocks.0.down", "blocks.0.up", "blocks.1.down", "blocks.1.up", "head"]);
  const most = grid("max", [1, 2, 7, 0, 3, 3, null, null, 5, 1]);
  assert.deepEqual(arrange(most, { ...ALL, sort: "worst" }, TYPES).lines.map(({ name }) => name), ["blocks.0.down", "head", "blocks.1.up", "blocks.0.up", "blocks.1.down"]);
});

test("a closed group is one line with the worst of its layers", () => {
  const { grid: drawn, lines, lineOf, groups, matched } = arrange(HEADROOM, { ...ALL, group: "block" }, TYPES);
  assert.deepEqual(lines.map(({ name, members }) => [name, members]), [["blocks.0", 2], ["blocks.1", 2], ["head", 1]]);
  assert.deepEqual([valueAt(drawn, 0, 0), valueAt(drawn, 0, 1), valueAt(drawn, 1, 0)], [3, 4, 2]);
  assert(Number.isNaN(valueAt(drawn, 1, 1)));
  assert.equal(valueAt(drawn, 2, 0), undefined);
  assert.equal(lineOf.get("blocks.1.down"), 1);
  assert.deepEqual([...groups], [["blocks.0", 2], ["blocks.1", 2], ["head", 1]]);
  assert.equal(matched, 5);
});

test("an open group shows its layers where the group stands", () => {
  assert.deepEqual(names({ ...ALL, group: "block", open: ["blocks.1"] }), ["blocks.0", "blocks.1.up", "blocks.1.down", "head"]);
  assert.deepEqual(names({ ...ALL, group: "type", sort: "worst" }), ["Up", "Linear"]);
  assert.deepEqual(names({ ...ALL, group: "precision" }), ["e5m2", "head"]);
});

test("names survive the address", () => {
  const hostile = ["a,b", "100%", "<b>&=#", "调试"];
  assert.deepEqual(namesIn(namesText(hostile)), hostile);
  assert.deepEqual(namesIn(""), []);
  assert.deepEqual(namesIn("50%"), ["50%"]);
});
