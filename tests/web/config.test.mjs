import assert from "node:assert/strict";
import test from "node:test";
import { entriesOf, executedOf, flatten, grouped, verdictsOf, weighs, yaml } from "../../web/data/config.js";

test("nested arguments become paths, and no two leaves share one", () => {
  const flat = flatten({ a: { "b.c": 1, b: { c: 2 } }, list: [{ x: 1 }, { x: 2 }], command: ["python", "a.py"], none: {} });
  assert.deepEqual([...flat], [["a.b\\.c", 1], ["a.b.c", 2], ["list[0].x", 1], ["list[1].x", 2], ["command", ["python", "a.py"]], ["none", {}]]);
  assert.equal(new Set(flatten({ "a[0]": 1, a: [{ b: 1 }], "a\\": { b: 1 } }).keys()).size, 3);
});

test("differences that matter for numerics come first, and each says what it is", () => {
  const own = { arguments: { batch: 8, lr: 1e-3, seed: 1, only: true }, doctor: [1] };
  const other = { arguments: { batch: 16, lr: 2e-3, seed: 1, gone: null } };
  const entries = entriesOf(own, other);
  assert.deepEqual(entries.map(({ path, change }) => [path, change]), [
    ["arguments.lr", "changed"], ["arguments.batch", "changed"], ["arguments.seed", "same"], ["arguments.only", "added"], ["arguments.gone", "removed"],
  ]);
  assert(entriesOf(own, null).every((entry) => entry.change === "same"));
});

test("what bears on numerics is told by its words, not by letters in other words", () => {
  for (const path of ["precision.autocast", "arguments.trainer.lr", "optimizer.AdamW.eps", "x.learning_rate", "deepspeed.fp16.loss_scale", "a.max_grad_norm", "versions.torch", "gradient_clipping", "environment.HSA_OVERRIDE_GFX_VERSION"]) assert(weighs(path), path);
  for (const path of ["arguments.logging_dir", "arguments.colr", "versions.numpy", "eclipse", "optimizer.AdamW.steps", "arguments.sample"]) assert(!weighs(path), path);
});

test("a search meets names and values of both runs, every word of it", () => {
  const entries = entriesOf({ precision: { autocast: "float16" }, odd: 1 }, { precision: { autocast: "bfloat16" }, odd: 1 });
  const found = (/** @type {string} */ search, changesOnly = false) => grouped(entries, { search, changesOnly }).map((group) => group.name);
  assert.deepEqual(found(""), ["precision", "more"]);
  assert.deepEqual(found("BFLOAT autocast"), ["precision"]);
  assert.deepEqual(found("", true), ["precision"]);
  assert.deepEqual(found("nothing"), []);
});

test("verdicts stand worst first, whatever an agent sent", () => {
  const of = (/** @type {unknown} */ doctor) => verdictsOf({ doctor }).map(({ item, status }) => [item, status]);
  assert.deepEqual(of([{ item: "a", status: "ok" }, { item: "b", status: "wrong" }, null, "x", { item: "c", status: "warning" }]), [["b", "wrong"], ["c", "warning"], ["a", "ok"]]);
  assert.deepEqual(of("nonsense"), []);
});

test("executed formats are counted by kind", () => {
  const operand = (/** @type {string} */ kind, /** @type {string} */ format) => ({ kind, format, role: "", scaling: "" });
  const layers = [{ name: "a", operands: [operand("act", "fp16"), operand("grad", "bf16")] }, { name: "b", operands: [operand("act", "bf16")] }, { name: "c", operands: [operand("act", "bf16")] }];
  assert.deepEqual(executedOf(layers), [["act", [["bf16", 2], ["fp16", 1]]], ["grad", [["bf16", 1]]]]);
});

test("YAML quotes what would be read as something else", () => {
  assert.equal(yaml({ a: "no", b: "plain text", c: { d: [1, { e: "x: y" }], f: [] }, "k:": null, g: "1.0", h: "a\nb" }), 'a: "no"\nb: plain text\nc:\n  d:\n    - 1\n    -\n      e: "x: y"\n  f: []\n"k:": null\ng: "1.0"\nh: "a\\nb"');
});
