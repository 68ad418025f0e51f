import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";
import { FIGURES } from "../../web/data/cards.js";
import { FAMILIES } from "../../web/data/health.js";
import { ORDERS, OUTCOMES, STATES, TABS } from "../../web/data/desk-route.js";
import { KINDS } from "../../web/data/route.js";
import { RUN_STATES } from "../../web/data/run-list.js";
import { METRICS } from "../../web/data/scale.js";
import { ALERT_FILTERS, ARCHIVE_FILTERS, GROUPS, LAYER_SORTS, RUN_SORTS, RUN_TABS } from "../../web/data/tab-fields.js";
import { sentences } from "../../web/data/text.js";
import { fill, languageFrom } from "../../web/data/words.js";
import { en } from "../../web/i18n/en.js";
import { zh } from "../../web/i18n/zh.js";

/** @param {string} text */
const holes = (text) => [...text.matchAll(/\{(\w+)\}/g)].map((match) => match[1]).sort();

test("both languages say the same things with the same figures in them", () => {
  assert.deepEqual(Object.keys(zh).sort(), Object.keys(en).sort());
  for (const [key, text] of Object.entries(en)) {
    const other = zh[/** @type {keyof typeof en} */ (key)];
    assert.deepEqual(holes(other), holes(text), key);
    assert(other.length > 0 && text.length > 0, key);
  }
});

test("everything the data can hold has a word", () => {
  const keys = [
    ...Object.keys(METRICS).flatMap((metric) => [`metric.${metric}`, `meaning.${metric}`]),
    ...KINDS.map((kind) => `kind.${kind}`),
    ...Object.keys(RUN_SORTS).map((sort) => `runs.${sort}`),
    ...ALERT_FILTERS.map((name) => `runs.alerts_${name}`),
    ...ARCHIVE_FILTERS.map((name) => `runs.archived_${name}`),
    ...[...Object.keys(FAMILIES), "system"].map((family) => `family.${family}`),
    ...Object.values(FAMILIES).flat().map((kind) => `alert.${kind}`),
    ...RUN_STATES.map((state) => `state.${state}`),
    ...GROUPS.map((name) => `group.${name}`),
    ...LAYER_SORTS.map((name) => `sort.${name}`),
    ...[...TABS, ...STATES].map((name) => `desk.${name}`),
    ...OUTCOMES.map((outcome) => `outcome.${outcome}`),
    ...["firing", "reminder", "resolved", "test"].map((event) => `event.${event}`),
    ...["generic", "slack", "discord", "teams", "feishu", "dingtalk", "wecom", "apprise"].flatMap((type) => [`receiver.${type}`, `needs.${type}`]),
    ...["default", "as-published", "strict"].map((preset) => `preset.${preset}`),
    ...ORDERS.map((order) => `order.${order}`),
    ...["cleared", "by_hand", "superseded", "run_finished", "run_restarted"].map((reason) => `because.${reason}`),
    ...["critical", "warning", "info"].map((severity) => `severity.${severity}`),
    ...["warm-up", "healthy", "oscillating", "collapsing", "at_minimum", "below_one"].flatMap((state) => [`scaler_is.${state}`, `scaler_means.${state}`]),
    ...Object.keys(FIGURES).map((figure) => `cards.${figure}`),
    ...RUN_TABS.map((tab) => `tab.${tab}`),
  ];
  for (const key of keys) assert(key in en, key);
});

test("every word is used, and every word that is used exists", () => {
  const web = new URL("../../web/", import.meta.url);
  const sources = readdirSync(web, { recursive: true })
    .filter((name) => name.endsWith(".js") && !name.startsWith("i18n") && !name.startsWith("node_modules"))
    .map((name) => readFileSync(new URL(name, web), "utf8"))
    .join("\n");
  const used = new Set([...sources.matchAll(/\bt\(\s*"([^"]+)"/g)].map((match) => match[1]));
  for (const key of used) assert(key !== undefined && key in en, `no word for ${key}`);
  const computed = new Set([...sources.matchAll(/`(\w+)\.\$\{/g)].map((match) => match[1]));
  for (const key of Object.keys(en)) {
    assert(computed.has(key.split(".")[0]) || sources.includes(`"${key}"`), `${key} is never said`);
  }
});

test("figures are put into the text as they are", () => {
  assert.equal(fill("step {step} of {all}", { step: "7", all: "$&{step}" }), "step 7 of $&{step}");
});

test("a word goes with its figure", () => {
  const said = (/** @type {string} */ n) => fill("{n} critical {n|alert|alerts} open", { n });
  assert.deepEqual(["0", "1", "2", "1,000"].map(said), ["0 critical alerts open", "1 critical alert open", "2 critical alerts open", "1,000 critical alerts open"]);
  for (const [key, text] of Object.entries(en)) {
    for (const [, name] of text.matchAll(/\{(\w+)\|/g)) assert(holes(text).includes(name), key);
  }
});

test("the browser's wish decides until the person does", () => {
  assert.equal(languageFrom(null, ["zh-TW", "en"]), "zh");
  assert.equal(languageFrom(null, ["de-DE", "en-GB", "zh"]), "en");
  assert.equal(languageFrom(null, ["de"]), "en");
  assert.equal(languageFrom("zh", ["en"]), "zh");
  assert.equal(languageFrom("xx", ["zh"]), "zh");
});

test("two sentences stay two", () => {
  assert.equal(sentences("token refused", "ask again"), "Token refused. Ask again.");
  assert.equal(sentences("Refused.", "Ask again."), "Refused. Ask again.");
  assert.equal(sentences("服务器没有应答。", "再试。"), "服务器没有应答。 再试。");
  assert.equal(sentences("Refused", ""), "Refused.");
  assert.equal(sentences("loss_spike.ratio must not be negative"), "loss_spike.ratio must not be negative.");
});
