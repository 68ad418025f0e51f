/** What was sent where, and what became of it. */

import { OUTCOMES } from "../../data/desk-route.js";
import { clock, count } from "../../data/text.js";
import { h } from "../dom.js";
import { severityMark } from "../marks.js";
import { empty, pendingNote } from "../notes.js";
import { action, choice, refusal, trouble } from "./controls.js";

/** @typedef {import("../../data/types.js").Delivery} Delivery */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

/** @param {State} state @param {Context} context */
export function deliveriesTab(state, context) {
  const { t, act } = context;
  const { data, error } = state.desk.deliveries;
  const note = pendingNote(context, state.desk.deliveries, t("desk.deliveries"));
  if (note || data === null) return note;
  const { desk } = state.route;
  const endpoints = state.desk.endpoints.data ?? [];
  const any = /** @type {const} */ (["", t("desk.any")]);
  const known = endpoints.map((one) => /** @type {const} */ ([String(one.id), `${t(`receiver.${one.type}`)} \u00b7 ${one.url}`]));
  const gone = desk.endpoint !== "" && !endpoints.some((one) => String(one.id) === desk.endpoint) ? [/** @type {const} */ ([desk.endpoint, `#${desk.endpoint}`])] : [];
  const narrowed = desk.endpoint !== "" || desk.outcome !== "";
  return [
    trouble(context, error),
    h(
      "div",
      { class: "filters", role: "group", "aria-label": t("sent.filter") },
      choice(t("sent.to"), desk.endpoint, [any, ...known, ...gone], (endpoint) => act.desk.go({ endpoint })),
      choice(t("desk.state"), desk.outcome, [any, ...OUTCOMES.map((name) => /** @type {const} */ ([name, t(`outcome.${name}`)]))], (outcome) => act.desk.go({ outcome })),
      narrowed ? h("a", { class: "clear", href: act.desk.link({ endpoint: "", outcome: "" }) }, t("desk.clear")) : null,
    ),
    data.length === 0 ? (narrowed ? empty(t("sent.none")) : empty(t("sent.none_ever"), t("sent.none_ever_hint"))) : table(data, state, context),
    data.length >= state.desk.shown ? h("p", { class: "more" }, h("button", { type: "button", onclick: act.desk.showMore }, t("sent.older"))) : null,
  ];
}

/** @param {readonly Delivery[]} data @param {State} state @param {Context} context */
function table(data, state, context) {
  const { t } = context;
  const head = (/** @type {string} */ text, className = "") => h("th", { scope: "col", class: className }, text);
  return h(
    "table",
    { class: "table sent-table" },
    h("thead", null, h("tr", null, head(t("sent.when"), "wide"), head(t("sent.what")), head(t("sent.to"), "wide"), head(t("sent.outcome")), head(t("sent.tries"), "figure wide"), state.session?.scope === "admin" ? head("") : null)),
    h("tbody", null, data.map((delivery) => row(delivery, state, context))),
  );
}

/** @param {Delivery} delivery @param {State} state @param {Context} context */
function row(delivery, state, context) {
  const { t, act } = context;
  const endpoint = state.desk.endpoints.data?.find((one) => one.id === delivery.endpoint);
  const to = endpoint ? `${t(`receiver.${endpoint.type}`)} \u00b7 ${endpoint.url}` : `#${delivery.endpoint}`;
  const when = h("time", { datetime: delivery.created_at }, clock(Date.parse(delivery.created_at), state.now));
  const what = t(`event.${delivery.type.replace("alert.", "")}`);
  const of = `redeliver ${delivery.id}`;
  const onItsWay = delivery.state === "pending" || delivery.state === "leased";
  return h(
    "tr",
    { key: String(delivery.id) },
    h("td", { class: "wide" }, when),
    h("th", { scope: "row" }, delivery.alert === null ? what : h("a", { class: "event", href: act.desk.link({ tab: "alerts", state: "all", alert: String(delivery.alert), endpoint: "", outcome: "" }) }, t("sent.about", { what, id: String(delivery.alert) })), h("p", { class: "narrow muted" }, to)),
    h("td", { class: "wide" }, endpoint ? h("a", { class: "run-link", title: to, href: act.desk.link({ endpoint: String(endpoint.id) }) }, to) : to),
    h("td", null, outcome(delivery, state, context), refusal(state, context, of)),
    h("td", { class: "figure wide" }, count(delivery.tries)),
    state.session?.scope === "admin" ? h("td", { class: "figure" }, onItsWay || endpoint?.enabled === false ? null : action(state, of, t("sent.again"), () => act.desk.redeliver(delivery.id))) : null,
  );
}

/** A word, a shape, and why. @param {Delivery} delivery @param {State} state @param {Context} context */
export function outcome({ state: what, http_status: status, error, next_at: next }, state, { t }) {
  const sign = what === "ok" ? h("span", { class: "ok", "aria-hidden": "true" }) : what === "dead" ? severityMark("critical") : what === "failed" ? severityMark("warning") : h("span", { class: "unknown", "aria-hidden": "true" });
  const again = what === "failed" && next !== null ? t("sent.next", { time: clock(Date.parse(next), state.now) }) : "";
  return h(
    "div",
    { class: "outcome" },
    h("span", { class: "outcome-word" }, sign, t(`outcome.${what}`), status === null ? null : h("span", { class: "muted figure" }, `HTTP ${status}`)),
    error === null ? null : h("span", { class: "why" }, error),
    again === "" ? null : h("span", { class: "muted" }, again),
  );
}
