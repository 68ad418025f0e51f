/** The rules and their parameters, for all runs or for one: changed, tried on a run, and only then saved. */

import { FAMILIES } from "../../data/health.js";
import { ENABLED, base, blamed, entries, isOn, presetIn, shown, switched, unsaved, wanted } from "../../data/rule-draft.js";
import { count } from "../../data/text.js";
import { h } from "../dom.js";
import { pendingNote } from "../notes.js";
import { action, choice, refusal, tick, trouble } from "./controls.js";
import { previewed } from "./rule-preview.js";

/** @typedef {import("../../data/rule-draft.js").RuleBook} RuleBook */
/** @typedef {import("../../data/rule-draft.js").Entry} Entry */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

/** @param {State} state @param {Context} context */
export function rulesTab(state, context) {
  const { t } = context;
  const load = state.desk.rules;
  const book = load.data?.run === state.route.desk.run ? load.data : null;
  const note = pendingNote(context, { ...load, data: book }, t("desk.rules"));
  if (note || book === null) return note;
  const all = entries(book.rules);
  const { refused } = state.desk;
  const wrong = refused?.of === "rules" ? blamed(refused.error.message, all) : null;
  const families = [...Object.keys(FAMILIES), "system"];
  return [
    trouble(context, load.error),
    bar(book, state, context),
    previewed(state, context),
    families.map((family) => {
      const own = all.filter((entry) => entry.family === family);
      return own.length === 0 ? null : h("section", { key: family, class: "family" }, h("h2", { class: "label" }, t(`family.${family}`)), h("ul", { class: "plain-list" }, own.map((entry) => item(entry, book, state, context, wrong))));
    }),
  ];
}

/** @param {RuleBook} book @param {State} state @param {Context} context */
function bar(book, state, context) {
  const { t, act } = context;
  const { draft } = state.desk;
  const { run } = book;
  const admin = state.session?.scope === "admin";
  const changes = unsaved(book, draft);
  const runs = (state.runs.data ?? []).map(({ name }) => name);
  const scopes = run === "" || runs.includes(run) ? runs : [run, ...runs];
  const presets = Object.keys(book.settings.levels).filter((name) => name !== "");
  const tried = run === "" ? (draft["try"] ?? runs[0] ?? "") : run;
  const settings = wanted(book, Object.fromEntries(changes.map((key) => [key, draft[key] ?? ""])));
  // A run that has no preset goes by that of all runs; what is tried for all must not.
  const trial = run === "" ? { ...settings, preset: settings.preset ?? "default" } : settings;
  return h(
    "div",
    { class: "filters rule-bar" },
    choice(t("rule.scope"), run, [["", t("rule.all_runs")], ...scopes.map((name) => /** @type {const} */ ([name, name]))], (name) => act.desk.go({ run: name })),
    admin ? choice(t("rule.preset"), presetIn(book, draft), [...(run === "" ? [] : [/** @type {const} */ (["", t("rule.as_all")])]), ...presets.map((name) => /** @type {const} */ ([name, t(`preset.${name}`)]))], (name) => act.desk.type("preset", name)) : null,
    runs.length === 0 ? null : [run === "" ? choice(t("rule.try_on"), tried, runs.map((name) => /** @type {const} */ ([name, name])), (name) => act.desk.type("try", name)) : null, action(state, "rules", t("rule.preview"), () => act.desk.previewRules(tried, trial), { title: t("rule.preview_why") })],
    h("span", { class: "spring" }),
    admin
      ? h(
          "span",
          { class: "unsaved" },
          changes.length === 0 ? h("span", { class: "muted", role: "status" }, t("rule.saved")) : h("span", { role: "status" }, t("rule.unsaved", { n: count(changes.length) })),
          changes.length === 0 ? null : h("button", { type: "button", onclick: act.desk.discardRules }, t("rule.discard")),
          changes.length === 0 ? null : action(state, "rules", t("end.save"), () => act.desk.saveRules(run, settings), { class: "primary slim" }),
        )
      : h("span", { class: "muted" }, t("rule.read_only")),
    refusal(state, context, "rules"),
  );
}

/** @param {Entry} entry @param {RuleBook} book @param {State} state @param {Context} context @param {string | null} wrong parameter that the server refused */
function item(entry, book, state, context, wrong) {
  const { t, act } = context;
  const { rule, kinds, parameters } = entry;
  const open = state.route.desk.kind === rule || wrong?.split(".")[0] === rule;
  const on = isOn(book, state.desk.draft, rule);
  const changed = parameters.filter((name) => shown(book, state.desk.draft, rule, name).own);
  return h(
    "li",
    { key: rule, class: `rule${open ? " open" : ""}${on ? "" : " off"}` },
    h(
      "div",
      { class: "rule-head" },
      h("a", { href: act.desk.link({ kind: open ? "" : rule }), "aria-expanded": open ? "true" : "false" }, kinds.map((one) => t(`alert.${one.kind}`)).join(" \u00b7 ")),
      h("span", { class: "rule-what muted" }, kinds.map((one) => (state.language === "zh" ? one.description_zh : one.description)).join("; ")),
      open ? null : h("span", { class: "rule-changed figure" }, changed.map((name) => `${name} ${shown(book, state.desk.draft, rule, name).text}`).join("  ")),
      state.session?.scope === "admin"
        ? tick(t(on ? "rule.on" : "rule.off"), on, (wish) => act.desk.type(`${rule}.${ENABLED}`, switched(book, state.desk.draft, rule, wish)))
        : on ? null : h("span", { class: "muted" }, t("rule.off")),
    ),
    open ? h("div", { class: "rule-fields" }, parameters.map((name) => parameter(rule, name, book, state, context, wrong === `${rule}.${name}`))) : null,
    open ? h("p", { class: "muted rule-hint" }, t("rule.hint")) : null,
  );
}

/** @param {string} rule @param {string} name @param {RuleBook} book @param {State} state @param {Context} context @param {boolean} wrong */
function parameter(rule, name, book, state, { t, act }, wrong) {
  const key = `${rule}.${name}`;
  const { text, own } = shown(book, state.desk.draft, rule, name);
  const usual = String(base(book, state.desk.draft, rule, name) ?? "");
  const type = (/** @type {Event} */ event) => act.desk.type(key, /** @type {HTMLInputElement} */ (event.currentTarget).value);
  return h(
    "div",
    { key, class: `parameter${own ? " own" : ""}` },
    h("div", null, h("label", { for: `rule-${key}` }, name), h("span", { id: `gloss-${key}`, class: "muted gloss" }, t(`param.${name}`))),
    h("input", { id: `rule-${key}`, "aria-describedby": `gloss-${key}`, type: "text", inputmode: "decimal", autocomplete: "off", value: text, readonly: state.session?.scope !== "admin", "aria-invalid": wrong ? "true" : undefined, oninput: type }),
    own && state.session?.scope === "admin" ? h("button", { type: "button", class: "plain", title: t("rule.reset", { value: usual }), onclick: () => act.desk.type(key, "") }, h("span", { "aria-hidden": "true" }, `\u21ba ${usual}`), h("span", { class: "sr" }, `${name}: ${t("rule.reset", { value: usual })}`)) : null,
  );
}
