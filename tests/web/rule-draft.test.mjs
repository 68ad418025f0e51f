import assert from "node:assert/strict";
import test from "node:test";
import { base, blamed, entries, isOn, presetIn, shown, switched, unsaved, wanted } from "../../web/data/rule-draft.js";

/** @param {string} kind @param {string} rule @param {Record<string, number>} parameters */
const rule = (kind, rule, parameters) => ({ kind, rule, description: "", description_zh: "", parameters });
const RULES = [rule("limit_near", "limits", { near_bits: 1 }), rule("limit_crossed", "limits", { near_bits: 1 }), rule("loss_spike", "loss_spike", { ratio: 1.4, margin: 0.2 })];
const level = (/** @type {number} */ ratio) => ({ limits: { near_bits: 1 }, loss_spike: { ratio, margin: 0.2 } });

/** @type {import("../../web/data/rule-draft.js").RuleBook} */
const BOOK = { run: "r", rules: RULES, settings: { preset: null, parameters: { loss_spike: { ratio: 1.4 } }, levels: { default: level(1.5), strict: level(1.3), "": level(1.6) } } };

test("kinds of one rule share its parameters", () => {
  assert.deepEqual(entries(RULES).map((entry) => [entry.rule, entry.family, entry.kinds.length]), [["limits", "limits", 2], ["loss_spike", "loss", 1]]);
});

test("a run without a preset goes by that of all runs; for all runs it is the default", () => {
  assert.equal(presetIn(BOOK, {}), "");
  assert.equal(base(BOOK, {}, "loss_spike", "ratio"), 1.6);
  assert.equal(base(BOOK, { preset: "strict" }, "loss_spike", "ratio"), 1.3);
  assert.equal(presetIn({ ...BOOK, run: "" }, {}), "default");
});

test("a field shows what is typed, else what is set here, else what the preset gives", () => {
  assert.deepEqual(shown(BOOK, {}, "loss_spike", "ratio"), { text: "1.4", own: true });
  assert.deepEqual(shown(BOOK, {}, "loss_spike", "margin"), { text: "0.2", own: false });
  assert.deepEqual(shown(BOOK, { "loss_spike.ratio": "" }, "loss_spike", "ratio"), { text: "1.6", own: false });
  assert.deepEqual(shown(BOOK, { "loss_spike.margin": "0." }, "loss_spike", "margin"), { text: "0.", own: true });
});

test("only what differs from what is stored is unsaved", () => {
  assert.deepEqual(unsaved(BOOK, { preset: "", "loss_spike.ratio": "1.40", "loss_spike.margin": "", try: "other" }), []);
  assert.deepEqual(unsaved(BOOK, { preset: "strict", "loss_spike.ratio": "", "limits.near_bits": "x" }), ["preset", "loss_spike.ratio", "limits.near_bits"]);
});

test("what is sent is the whole, with what is no number as it was typed", () => {
  assert.deepEqual(wanted(BOOK, {}), { preset: null, parameters: { loss_spike: { ratio: 1.4 } } });
  assert.deepEqual(wanted(BOOK, { preset: "strict", "loss_spike.ratio": "", "limits.near_bits": "2", try: "other" }), { preset: "strict", parameters: { limits: { near_bits: 2 } } });
  assert.deepEqual(wanted(BOOK, { "loss_spike.margin": "two" }).parameters["loss_spike"], { ratio: 1.4, margin: "two" });
  assert.deepEqual(BOOK.settings.parameters, { loss_spike: { ratio: 1.4 } }, "the stored settings stay as they are");
});

test("a rule is switched against its preset, and back without a trace", () => {
  const levels = { "": { loss_spike: { enabled: 0 } }, strict: { loss_spike: { enabled: 1 } } };
  const book = { ...BOOK, settings: { preset: null, parameters: {}, levels } };
  assert(!isOn(book, {}, "loss_spike") && isOn(book, { preset: "strict" }, "loss_spike"));
  assert(isOn(book, { "loss_spike.enabled": switched(book, {}, "loss_spike", true) }, "loss_spike"));
  assert.equal(switched(book, {}, "loss_spike", false), "");
  assert.equal(switched(book, { preset: "strict" }, "loss_spike", false), "0");
  assert.deepEqual(entries([rule("loss_spike", "loss_spike", { enabled: 1, ratio: 2 })])[0]?.parameters, ["ratio"]);
});

test("a message of the server is put beside the parameter that it is about", () => {
  const all = entries(RULES);
  assert.equal(blamed("loss_spike.margin must not be negative", all), "loss_spike.margin");
  assert.equal(blamed("parameters.limits.near_bits: Input should be a valid number", all), "limits.near_bits");
  assert.equal(blamed("there is no preset 'x'", all), null);
});
