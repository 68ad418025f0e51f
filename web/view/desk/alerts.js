/** Alerts of all runs: what is open, what was, and the one that is looked at. */

import { alertsShown, choices, covers, perState } from "../../data/desk.js";
import { ORDERS, SEVERITIES, STATES } from "../../data/desk-route.js";
import { clock, count, tail } from "../../data/text.js";
import { serverNow } from "../../state.js";
import { h } from "../dom.js";
import { severityMark } from "../marks.js";
import { empty, pendingNote } from "../notes.js";
import { alertDetail } from "./alert-detail.js";
import { choice, trouble } from "./controls.js";
import { silences } from "./silences.js";

/** @typedef {import("../../data/health.js").Alert} Alert */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

/** @param {State} state @param {Context} context */
export function alertsTab(state, context) {
  const { data, error } = state.desk.alerts;
  const note = pendingNote(context, state.desk.alerts, context.t("what.alerts"));
  if (note || data === null) return note;
  const { desk } = state.route;
  const shown = alertsShown(data, desk);
  const open = data.find((alert) => String(alert.id) === desk.alert);
  return [
    trouble(context, error),
    filters(data, state, context),
    h(
      "div",
      { class: `desk-bench${desk.alert === "" ? "" : " looking"}` },
      h("div", { class: "desk-list" }, shown.length === 0 ? nothing(data, context) : list(shown, state, context)),
      h("div", { class: "desk-side" }, desk.alert === "" ? null : alertDetail(open ?? null, state, context), silences(state, context)),
    ),
  ];
}

/** @param {readonly Alert[]} data @param {State} state @param {Context} context */
function filters(data, state, { t, act }) {
  const { desk } = state.route;
  const counts = perState(data, desk);
  const any = /** @type {const} */ (["", t("desk.any")]);
  const narrowed = desk.severity !== "" || desk.kind !== "" || desk.run !== "";
  return h(
    "div",
    { class: "filters", role: "group", "aria-label": t("desk.filter") },
    h(
      "div",
      { class: "segments", role: "group", "aria-label": t("desk.state") },
      STATES.map((name) => h("a", { key: name, href: act.desk.link({ state: name, alert: "" }), "aria-current": desk.state === name ? "true" : undefined }, t(`desk.${name}`), " ", h("span", { class: "figure" }, count(counts[name])))),
    ),
    choice(t("desk.severity"), desk.severity, [any, ...SEVERITIES.map((name) => /** @type {const} */ ([name, t(`severity.${name}`)]))], (severity) => act.desk.go({ severity })),
    choice(t("desk.kind"), desk.kind, [any, ...choices(data.map((alert) => alert.kind), desk.kind).map((name) => /** @type {const} */ ([name, t(`alert.${name}`)]))], (kind) => act.desk.go({ kind })),
    choice(t("desk.run"), desk.run, [any, ...choices(data.map((alert) => alert.run), desk.run).map((name) => /** @type {const} */ ([name, name]))], (run) => act.desk.go({ run })),
    narrowed ? h("a", { class: "clear", href: act.desk.link({ severity: "", kind: "", run: "" }) }, t("desk.clear")) : null,
    h("span", { class: "spring" }),
    choice(t("desk.order"), desk.order, ORDERS.map((name) => /** @type {const} */ ([name, t(`order.${name}`)])), (order) => act.desk.go({ order })),
  );
}

/** @param {readonly Alert[]} data @param {Context} context */
function nothing(data, { t, act }) {
  if (data.length === 0) return empty(t("desk.none_ever"), t("desk.none_ever_hint"));
  return h("div", { class: "note" }, h("strong", null, h("span", { class: "ok", "aria-hidden": "true" }), " ", t("desk.none")), h("a", { href: act.desk.link({ state: "all", severity: "", kind: "", run: "" }) }, t("desk.show_all")));
}

/** @param {readonly Alert[]} alerts @param {State} state @param {Context} context */
function list(alerts, state, context) {
  const { t, act } = context;
  const rows = alerts.slice(0, state.desk.shown);
  const head = (/** @type {string} */ key, /** @type {string} */ text, className = "") => h("th", { scope: "col", class: className, key }, text);
  return [
    h(
      "table",
      { class: "table alert-table" },
      h("thead", null, h("tr", null, head("what", t("desk.what")), head("run", t("desk.run"), "mid"), head("step", t("runs.step"), "figure mid"), head("opened", t("desk.opened"), "wide"), head("state", t("desk.state")))),
      h("tbody", null, rows.map((alert) => row(alert, state, context))),
    ),
    alerts.length > rows.length ? h("p", { class: "more" }, h("button", { type: "button", onclick: act.desk.showMore }, t("desk.more", { shown: count(rows.length), all: count(alerts.length) }))) : null,
  ];
}

/** @param {Alert} alert @param {State} state @param {Context} context */
function row(alert, state, { t, act }) {
  const { desk } = state.route;
  const settled = alert.state === "resolved";
  const here = String(alert.id) === desk.alert;
  const silenced = (state.desk.silences.data ?? []).some((silence) => covers(silence, alert, serverNow(state)));
  const status = settled ? t("alerts.resolved") : alert.acknowledged_at ? t("alerts.acknowledged") : t("alerts.firing");
  const opened = alert.opened_at ? clock(Date.parse(alert.opened_at), state.now) : null;
  const where = alert.layer ?? (alert.device === null ? null : `${t("desk.device")} ${alert.device}`);
  return h(
    "tr",
    { key: String(alert.id), class: `${settled ? "settled" : ""}${here ? " chosen" : ""}` },
    h(
      "th",
      { scope: "row" },
      h(
        "div",
        { class: "alert-what" },
        severityMark(alert.severity, settled || Boolean(alert.acknowledged_at)),
        h("span", { class: "sr" }, t(`severity.${alert.severity}`)),
        h("a", { href: act.desk.link({ alert: here ? "" : String(alert.id) }), "aria-expanded": here ? "true" : "false" }, t(`alert.${alert.kind}`)),
        where === null ? null : h("span", { class: "layer muted", title: where }, tail(where, 40)),
      ),
      h("p", { class: "gist" }, state.language === "zh" ? alert.message_zh || alert.message : alert.message),
      h("p", { class: "narrow muted" }, `${alert.run} \u00b7 ${t("at_step", { step: count(alert.first_step) })}${opened === null ? "" : ` \u00b7 ${opened}`}`),
    ),
    h("td", { class: "mid" }, h("a", { class: "run-link", title: alert.run, href: act.link({ ...linkTo(alert) }) }, alert.run)),
    h("td", { class: "figure mid" }, count(alert.first_step)),
    h("td", { class: "wide" }, opened === null ? "\u2014" : h("time", { datetime: alert.opened_at }, opened)),
    h("td", { class: settled ? "muted" : "" }, status, silenced && !settled ? h("span", { class: "muted" }, ` \u00b7 ${t("desk.silenced")}`) : null),
  );
}

/** The run at the step, with the layer's drawer open where the alert names a layer. @param {Alert} alert @returns {Partial<import("../../data/route.js").Route>} */
export function linkTo(alert) {
  const tensor = alert.detail?.tensor;
  return { page: "run", run: alert.run, step: alert.first_step, layer: alert.layer, ...(tensor === undefined ? {} : { kind: tensor }) };
}
