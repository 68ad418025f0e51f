/** What the run was configured with, what it executed, on which machine; beside it what another run had. */

import { LONG_VALUE, entriesOf, executedOf, grouped, plainText, verdictsOf, yaml } from "../../data/config.js";
import { count } from "../../data/text.js";
import { currentRun } from "../../state.js";
import { h } from "../dom.js";
import { empty, failure, pendingNote } from "../notes.js";
import { choice } from "../desk/controls.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/config.js").Entry} Entry */
/** @typedef {import("../../data/types.js").RunDetail} RunDetail */

/** @param {State} state @param {Context} context */
export function configTab(state, context) {
  const { t } = context;
  const detail = state.detail.data;
  const note = pendingNote(context, state.detail, t("what.run"));
  if (note || detail === null) return note;
  const { against, show, find, attempt } = fieldsOf(state);
  const own = configOf(detail, attempt === "" ? (currentRun(state)?.attempt ?? null) : Number(attempt));
  const other = against === "" ? null : (state.config.other.data?.config ?? null);
  const entries = entriesOf(own, other);
  const groups = grouped(entries, { search: find, changesOnly: other !== null && show !== "all" });
  return h(
    "div",
    { class: "config" },
    bar(own, entries, detail, state, context),
    against !== "" && other === null ? (state.config.other.error ? failure(context, state.config.other.error) : pendingNote(context, state.config.other, t("what.run"))) : null,
    h(
      "div",
      { class: "config-bench" },
      h(
        "div",
        { class: "config-list" },
        groups.map((group) => section(group, other === null ? null : against, state, context)),
        groups.length > 0 ? null : entries.length === 0 ? empty(t("config.none"), t("config.none_hint")) : empty(t(find !== "" ? "config.nothing" : "config.equal")),
      ),
      h("div", { class: "config-side" }, doctor(own, context), executed(detail, context), checkpoints(detail, context)),
    ),
  );
}

/** @param {State} state */
function fieldsOf({ route }) {
  const field = (/** @type {string} */ name) => route.own[name] ?? "";
  return { against: field("against"), show: field("show"), find: field("find"), attempt: field("attempt") };
}

/** @param {RunDetail} detail @param {number | null} attempt */
const configOf = (detail, attempt) => detail.attempts.find(({ n }) => n === attempt)?.config ?? detail.config;

/** @param {Record<string, unknown>} own @param {readonly Entry[]} entries @param {RunDetail} detail @param {State} state @param {Context} context */
function bar(own, entries, detail, state, { t, act }) {
  const { route } = state;
  const { against, show, find, attempt } = fieldsOf(state);
  const go = (/** @type {Record<string, string>} */ change) => act.navigate({ own: { ...route.own, ...change } });
  const changed = detail.attempts.filter((one) => one.config).length;
  const differing = entries.filter((entry) => entry.change !== "same");
  const names = (state.runs.data ?? []).map((run) => run.name).filter((name) => name !== route.run || changed > 0);
  const text = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.currentTarget).value;
  const copied = state.config.copied;
  return h(
    "div",
    { class: "filters", role: "group", "aria-label": t("tab.config") },
    h("label", { class: "select" }, h("span", { class: "label" }, t("config.find")), h("input", { type: "search", spellcheck: "false", value: find, oninput: (/** @type {Event} */ event) => act.config.find(text(event)) })),
    h(
      "label",
      { class: "select" },
      h("span", { class: "label" }, t("config.against")),
      h("input", { class: "config-against", list: "config-runs", placeholder: t("config.pick"), spellcheck: "false", autocomplete: "off", value: against, onchange: (/** @type {Event} */ event) => go({ against: text(event) }) }),
      h("datalist", { id: "config-runs" }, names.map((name) => h("option", { key: name, value: name }))),
    ),
    against === ""
      ? null
      : [
          h("a", { class: "clear", href: act.link({ own: { ...route.own, against: "", show: "" } }) }, t("config.close")),
          h(
            "div",
            { class: "segments", role: "group" },
            ["", "all"].map((one) => h("a", { key: one, href: act.link({ own: { ...route.own, show: one } }), "aria-current": show === one ? "true" : undefined }, t(one === "" ? "config.differences" : "config.all"))),
          ),
          h("span", { class: "muted", role: "status" }, t("config.n_differences", { n: count(differing.length), weigh: count(differing.filter((entry) => entry.weighs).length) })),
        ],
    changed === 0
      ? null
      : [
          choice(
            t("config.attempt"),
            attempt === "" ? String(currentRun(state)?.attempt ?? "") : attempt,
            detail.attempts.map(({ n, first_step }) => [String(n), t("config.attempt_n", { n: String(n), step: first_step === null ? "\u2014" : count(first_step) })]),
            (n) => go({ attempt: n }),
          ),
          h("span", { class: "muted" }, t("config.changed_attempts", { n: String(changed), of: String(detail.attempts.length) })),
        ],
    h("span", { class: "spring" }),
    h("span", { role: "status", class: copied === "failed" ? "failed" : "muted" }, copied === "" ? "" : t(copied === "failed" ? "config.copy_failed" : "config.copied")),
    h(
      "span",
      { class: "copies" },
      h("button", { type: "button", onclick: () => void act.config.copy("json", JSON.stringify(own, null, 2)) }, t("config.copy_json")),
      h("button", { type: "button", onclick: () => void act.config.copy("yaml", yaml(own)) }, t("config.copy_yaml")),
    ),
  );
}

const SIGNS = { same: "", added: "+", removed: "\u2212", changed: "\u2260" };

/** @param {import("../../data/config.js").Group} group @param {string | null} against @param {State} state @param {Context} context */
function section({ name, entries }, against, state, context) {
  const { t } = context;
  const self = against === state.route.run;
  return h(
    "section",
    { key: name, "aria-labelledby": `config-${name}` },
    h("h2", { id: `config-${name}` }, t(`config.group.${name}`), " ", h("span", { class: "figure muted" }, count(entries.length))),
    h(
      "table",
      { class: "config-table" },
      h("thead", { class: against === null ? "sr" : "" }, h("tr", null, h("th", { scope: "col" }, t("config.name")), h("th", { scope: "col" }, t("config.own")), against === null ? null : h("th", { scope: "col" }, h("bdi", null, self ? t("config.self") : against)))),
      h(
        "tbody",
        null,
        entries.map((entry) =>
          h(
            "tr",
            { key: entry.path, class: `is-${entry.change}` },
            h("th", { scope: "row" }, h("span", { class: "config-sign", "aria-hidden": "true" }, SIGNS[entry.change]), h("bdi", null, entry.path), entry.weighs ? h("span", { class: "tag", title: t("config.weighs") }, "#", h("span", { class: "sr" }, t("config.weighs"))) : null, against === null ? null : h("span", { class: "sr" }, `, ${t(`config.${entry.change}`)}`)),
            h("td", { class: "own" }, entry.change === "removed" ? h("span", { class: "muted" }, "\u2014") : shown(entry.path, entry.value, context)),
            against === null ? null : h("td", { class: "other" }, entry.change === "added" ? h("span", { class: "muted" }, "\u2014") : shown(entry.path, entry.other, context)),
          ),
        ),
      ),
    ),
  );
}

/** A value, copied by a click; a long one is folded. @param {string} path @param {unknown} value @param {Context} context */
function shown(path, value, { t, act }) {
  const text = plainText(value);
  const copy = { type: "button", class: "plain config-value", title: t("config.copy_value", { path }), onclick: () => void act.config.copy(path, text) };
  if (text.length <= LONG_VALUE) return h("button", copy, text === "" ? '""' : text);
  return h("details", null, h("summary", null, `${text.slice(0, 80)}\u2026 `, h("span", { class: "muted" }, t("config.long", { size: count(text.length) }))), h("button", copy, text));
}

/** @param {Record<string, unknown>} own @param {Context} context */
function doctor(own, { t }) {
  const verdicts = verdictsOf(own);
  const bad = verdicts.filter(({ status }) => status !== "ok");
  const fine = verdicts.filter(({ status }) => status === "ok");
  const lines = (/** @type {typeof verdicts} */ some) =>
    h(
      "ul",
      { class: "verdicts" },
      some.map((one, i) =>
        h(
          "li",
          { key: `${i} ${one.item}`, class: `verdict-${one.status}` },
          h("p", null, h("span", { class: "tag" }, t(`config.status.${one.status}`)), " ", h("bdi", { class: "figure" }, one.item), h("span", { class: "muted" }, ` ${one.value}`)),
          one.why === "" ? null : h("p", null, one.why),
          one.fix === "" ? null : h("p", null, h("span", { class: "label" }, t("config.fix")), " ", h("code", null, one.fix)),
        ),
      ),
    );
  return h(
    "section",
    { "aria-labelledby": "config-doctor" },
    h("h2", { id: "config-doctor" }, t("config.doctor")),
    verdicts.length === 0 ? h("p", { class: "muted" }, t("config.doctor_none")) : null,
    bad.length === 0 ? null : lines(bad),
    fine.length === 0 ? null : h("details", null, h("summary", null, t("config.doctor_ok", { n: count(fine.length) })), lines(fine)),
  );
}

/** @param {RunDetail} detail @param {Context} context */
function executed(detail, { t }) {
  const kinds = executedOf(detail.layers);
  return h(
    "section",
    { "aria-labelledby": "config-executed" },
    h("h2", { id: "config-executed" }, t("config.executed")),
    kinds.length === 0
      ? h("p", { class: "muted" }, t("config.executed_none"))
      : [h("p", { class: "muted" }, t("config.executed_how")), h("dl", { class: "facts" }, kinds.map(([kind, formats]) => h("div", { key: kind }, h("dt", null, t(`kind.${kind}`)), h("dd", null, formats.map(([format, n]) => `${format} ${count(n)}`).join(" \u00b7 ")))))],
  );
}

/** @param {RunDetail} detail @param {Context} context */
function checkpoints({ checkpoints: saved }, { t }) {
  if (saved.length === 0) return null;
  return h(
    "section",
    { "aria-labelledby": "config-checkpoints" },
    h("h2", { id: "config-checkpoints" }, t("config.checkpoints")),
    h(
      "dl",
      { class: "facts" },
      saved.toReversed().map(({ step, attempt, rank, detail }) => h("div", { key: `${attempt} ${step} ${rank} ${plainText(detail)}` }, h("dt", null, t("at_step", { step: count(step) })), h("dd", null, h("bdi", null, plainText(detail["path"] ?? detail))))),
    ),
  );
}
