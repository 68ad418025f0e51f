/** One alert: what happened and what to do, the figures that decided, and what a person can say about it. */

import { covers, otherLayers, whoDid } from "../../data/desk.js";
import { number } from "../../data/json.js";
import { clock, count, figure } from "../../data/text.js";
import { serverNow } from "../../state.js";
import { h } from "../dom.js";
import { formatChip, severityMark } from "../marks.js";
import { linkTo } from "./alerts.js";
import { action, facts, refusal, twice } from "./controls.js";
import { silenceForm } from "./silences.js";

/** @typedef {import("../../data/health.js").Alert} Alert */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

/** @param {Alert | null} alert null: not among those that were loaded @param {State} state @param {Context} context */
export function alertDetail(alert, state, context) {
  const { t, act } = context;
  const close = h("a", { class: "close", href: act.desk.link({ alert: "" }) }, t("drawer.close"));
  const onkeydown = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && act.desk.go({ alert: "" });
  if (alert === null) return h("aside", { class: "detail", key: "detail", onkeydown, "aria-label": t("alerts.title") }, h("p", { class: "detail-head" }, t("desk.unknown", { id: state.route.desk.alert }), close));
  const settled = alert.state === "resolved";
  return h(
    "aside",
    { class: `detail ${alert.severity}`, key: "detail", onkeydown, "aria-labelledby": "detail-title" },
    h("div", { class: "detail-head" }, severityMark(alert.severity, settled || Boolean(alert.acknowledged_at)), h("h2", { id: "detail-title" }, t(`alert.${alert.kind}`)), close),
    h("p", { class: "detail-text" }, state.language === "zh" ? alert.message_zh || alert.message : alert.message),
    h("p", { class: "detail-links" }, h("a", { class: "button", href: act.link(linkTo(alert)) }, t(alert.layer === null ? "desk.to_step" : "desk.to_layer", { step: count(alert.first_step) }))),
    state.session?.scope === "admin" ? deeds(alert, state, context) : h("p", { class: "muted" }, t("desk.read_only")),
    facts(told(alert, state, context)),
  );
}

/** @param {Alert} alert @param {State} state @param {Context} context */
function deeds(alert, state, context) {
  const { t, act } = context;
  const { id } = alert;
  const open = alert.state !== "resolved";
  const words = { text: t("desk.resolve"), question: t("desk.resolve_sure"), sure: t("desk.resolve") };
  return [
    h(
      "p",
      { class: "deeds" },
      open && !alert.acknowledged_at ? action(state, `acknowledge ${id}`, t("alerts.acknowledge"), () => act.desk.acknowledge(id), { class: "primary" }) : null,
      open ? twice(state, context, `resolve ${id}`, words, () => act.desk.resolve(id)) : null,
      h("button", { type: "button", "aria-expanded": state.desk.asked === `silence ${id}` ? "true" : "false", onclick: () => act.desk.ask(`silence ${id}`, { seconds: "3600", run: alert.run, kind: alert.kind, layer: alert.layer ?? "" }) }, t("silence.add")),
    ),
    refusal(state, context, `acknowledge ${id}`),
    refusal(state, context, `resolve ${id}`),
    state.desk.asked === `silence ${id}` ? silenceForm(state, context, `silence ${id}`) : null,
  ];
}

/** @param {Alert} alert @param {State} state @param {Context} context @returns {[string, import("../dom.js").Child][]} */
function told(alert, state, { t }) {
  const audit = state.desk.audit.data;
  const at = (/** @type {string | null | undefined} */ time, /** @type {string | null} */ who = null) =>
    time ? [h("time", { datetime: time }, clock(Date.parse(time), state.now)), who === null ? null : h("span", { class: "muted" }, ` ${by(who, t)}`)] : null;
  const value = number(alert.value);
  const threshold = number(alert.threshold);
  const others = otherLayers(alert);
  const silence = (state.desk.silences.data ?? []).find((one) => covers(one, alert, serverNow(state)));
  const span = alert.last_step > alert.first_step ? `${count(alert.first_step)}\u2013${count(alert.last_step)}` : count(alert.first_step);
  const reason = alert.resolved_reason ?? "";
  return [
    [t("desk.severity"), t(`severity.${alert.severity}`)],
    [t("desk.run"), alert.run],
    [t("axis.steps"), span],
    [t("desk.since"), alert.since_step !== undefined && alert.since_step !== null && alert.since_step < alert.first_step ? count(alert.since_step) : null],
    [t("runs.layer"), alert.layer],
    [t("desk.others"), others.length > 0 ? h("ul", { class: "others" }, others.slice(0, 8).map((name) => h("li", null, name)), others.length > 8 ? h("li", { class: "muted" }, t("desk.and_more", { n: count(others.length - 8) })) : null) : null],
    [t("desk.rank"), alert.rank === null ? null : String(alert.rank)],
    [t("desk.device"), alert.device === null ? null : String(alert.device)],
    [t("heat.format"), alert.format === null ? null : formatChip(alert.format)],
    [t("desk.value"), value === undefined ? null : threshold === undefined ? figure(value) : t("desk.value_of", { value: figure(value), threshold: figure(threshold) })],
    [t("desk.hits"), (alert.hits ?? 0) > 1 ? count(alert.hits) : null],
    [t("desk.reason"), h("code", null, alert.reason)],
    [t("desk.opened"), at(alert.opened_at)],
    [t("alerts.acknowledged"), at(alert.acknowledged_at, whoDid(audit, "alert.acknowledge", alert.id))],
    [t("alerts.resolved"), at(alert.resolved_at, whoDid(audit, "alert.resolve", alert.id))],
    [t("desk.resolved_because"), alert.resolved_at === null || reason === "" ? null : t(`because.${reason}`)],
    [t("desk.silenced"), silence === undefined ? null : t("silence.until", { time: clock(Date.parse(silence.until), state.now) })],
  ];
}

/** @param {string} who as the audit log names them @param {Context["t"]} t */
export function by(who, t) {
  return who === "local" ? t("desk.by_local") : t("desk.by", { who });
}
