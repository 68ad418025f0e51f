/** What narrows the list, and what can be done with the runs that are picked. */

import { namesText } from "../../data/arrange.js";
import { HOME } from "../../data/route.js";
import { MOST_PICKED, RUN_STATES, filtered, narrowing, offered, orderOf, reordered, stateToggled, statesIn, tallied } from "../../data/run-list.js";
import { ALERT_FILTERS, ARCHIVE_FILTERS, RUN_SORTS } from "../../data/tab-fields.js";
import { count, sentences } from "../../data/text.js";
import { choice } from "../desk/controls.js";
import { h } from "../dom.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../data/types.js").RunItem} RunItem */
/** @typedef {import("../../main.js").Context} Context */

/** @param {readonly RunItem[]} all @param {number} shown @param {readonly string[]} picked @param {State} state @param {Context} context */
export function bar(all, shown, picked, state, context) {
  const { t, act } = context;
  const { own } = state.route;
  const go = (/** @type {string} */ name) => (/** @type {string} */ value) => act.navigate({ own: { [name]: value } });
  const type = (/** @type {Event} */ event) => act.replace({ own: { find: /** @type {HTMLInputElement} */ (event.currentTarget).value } });
  const { tags, chips, precisions } = offered(all);
  const any = /** @type {const} */ (["", t("runs.any")]);
  const named = (/** @type {readonly string[]} */ names) => names.map((name) => /** @type {const} */ ([name, name]));
  const unmet = all.some((run) => run.precision.unmet > 0) || own["precision"] === "unmet";
  const archived = all.some((run) => run.archived_at !== null) || own["archived"] !== "";
  const select = (/** @type {string} */ name, /** @type {readonly (readonly [string, string])[]} */ options) => (options.length === 0 && own[name] === "" ? null : choice(t(`runs.${name}`), own[name] ?? "", [any, ...kept(options, own[name] ?? "")], go(name)));
  return h(
    "div",
    { class: "runs-bar", role: "group", "aria-label": t("runs.filters") },
    h("label", { class: "select find" }, h("span", { class: "label" }, t("runs.find")), h("input", { type: "search", spellcheck: "false", autocomplete: "off", placeholder: t("runs.find_hint"), value: own["find"] ?? "", oninput: type })),
    states(all, state, context),
    h(
      "div",
      { class: "choices" },
      select("alerts", ALERT_FILTERS.map((one) => [one, t(`runs.alerts_${one}`)])),
      select("precision", [...named(precisions), ...(unmet ? [/** @type {const} */ (["unmet", t("runs.unmet")])] : [])]),
      select("chip", named(chips)),
      select("tag", named(tags)),
      archived ? choice(t("runs.archive"), own["archived"] ?? "", [["", t("runs.archived_no")], ...ARCHIVE_FILTERS.map((one) => /** @type {const} */ ([one, t(`runs.archived_${one}`)]))], go("archived")) : null,
    ),
    order(state, context),
    h("span", { class: "muted count", role: "status" }, narrowing(own).length > 0 ? t("runs.found", { n: count(shown), all: count(all.length) }) : ""),
    narrowing(own).length > 0 ? clear(context) : null,
    h("span", { class: "spring" }),
    actions(all, picked, state, context),
  );
}

/** With what the address names though no run has it any more. @param {readonly (readonly [string, string])[]} options @param {string} value */
const kept = (options, value) => (value === "" || options.some(([one]) => one === value) ? options : [...options, /** @type {const} */ ([value, value])]);

/** The way back to the whole list. @param {Context} context */
export function clear({ t, act }) {
  return h("button", { type: "button", class: "plain clear", onclick: () => act.navigate({ own: { find: "", state: "", tag: "", chip: "", precision: "", alerts: "" } }) }, t("runs.clear"));
}

/** A button for each state, with how many there are. @param {readonly RunItem[]} all @param {State} state @param {Context} context */
function states(all, state, { t, act }) {
  const { own } = state.route;
  const chosen = statesIn(own["state"] ?? "");
  const counts = tallied(filtered(all, own, true));
  return h(
    "div",
    { class: "states", role: "group", "aria-label": t("runs.state") },
    RUN_STATES.map((one) =>
      h(
        "button",
        { key: one, type: "button", class: counts.get(one) ? `state-${one}` : "none", "aria-pressed": String(chosen.includes(one)), onclick: () => act.navigate({ own: { state: stateToggled(own["state"] ?? "", one) } }) },
        h("span", { class: counts.get(one) ? `runstate state-${one}` : "runstate" }, t(`state.${one}`)),
        h("span", { class: "figure" }, count(counts.get(one) ?? 0)),
      ),
    ),
  );
}

/** In place of the head of the table, where that has no room. @param {State} state @param {Context} context */
function order(state, { t, act }) {
  const { own } = state.route;
  const { by, order: direction } = orderOf(own);
  return h(
    "span",
    { class: "ordering" },
    choice(t("runs.sort"), by, Object.keys(RUN_SORTS).map((name) => [name, t(`runs.${name}`)]), (name) => act.navigate({ own: { sort: name === "started" ? "" : name, order: "" } })),
    h("button", { type: "button", "aria-label": t(`runs.${direction}`), onclick: () => act.navigate({ own: reordered(own, by) }) }, direction === "asc" ? "\u2191" : "\u2193"),
  );
}

/** @param {readonly RunItem[]} all @param {readonly string[]} picked @param {State} state @param {Context} context */
function actions(all, picked, state, { t, act }) {
  if (picked.length === 0) return null;
  const runs = all.filter((run) => picked.includes(run.name));
  const ended = runs.filter((run) => run.archived_at === null && run.state !== "live" && run.state !== "stalled").map(({ name }) => name);
  const away = runs.filter((run) => run.archived_at !== null).map(({ name }) => name);
  const { busy, error, editing } = state.list;
  const move = (/** @type {string} */ word, /** @type {string[]} */ names, /** @type {boolean} */ archived) =>
    names.length === 0 ? null : h("button", { key: word, type: "button", disabled: busy > 0, onclick: () => void act.list.archive(names, archived) }, t(word, { n: count(names.length) }));
  return h(
    "span",
    { class: "picked" },
    error && editing === null ? h("span", { class: "failed", role: "alert" }, sentences(error.message || t("note.unreachable"), error.hint)) : null,
    picked.length === 1
      ? h("span", { class: "muted" }, t("runs.pick_more"))
      : picked.length > MOST_PICKED
        ? h("span", { class: "muted" }, t("runs.too_many", { n: count(picked.length), most: count(MOST_PICKED) }))
        : h("a", { class: "compare-picked", href: act.link({ ...HOME, page: "compare", own: { runs: namesText(picked) } }) }, t("runs.compare_n", { n: count(picked.length) })),
    state.session?.scope === "admin" ? [move("runs.archive_n", ended, true), move("runs.unarchive_n", away, false)] : null,
    h("button", { type: "button", class: "plain", onclick: () => act.replace({ own: { pick: "" } }) }, t("runs.unpick")),
  );
}
