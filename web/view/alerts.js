/** What fired: what, where, when, and a sentence that says what to do. */

import { attemptOf, overtaken } from "../data/attempts.js";
import { firstCritical, ordered, tensorOf } from "../data/health.js";
import { clock, count } from "../data/text.js";
import { alertsInView } from "../state.js";
import { h } from "./dom.js";
import { formatChip, severityMark } from "./marks.js";
import { failure, loading } from "./notes.js";

/** @typedef {import("../data/health.js").Alert} Alert */
/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../state.js").State} State */

/** @param {State} state @param {Context} context */
export function alertList(state, context) {
  const { t } = context;
  const { data, error } = state.alerts;
  const present = alertsInView(state);
  const earlier = (data ?? []).filter((alert) => !present.includes(alert));
  const first = present.length > 1 ? firstCritical(present) : null;
  const open = data?.filter((alert) => alert.state !== "resolved").length ?? 0;
  return h(
    "section",
    { class: "alerts", "aria-labelledby": "alerts-title" },
    h("h2", { id: "alerts-title" }, t("alerts.title"), h("span", { class: "muted" }, data === null ? "" : t("alerts.open", { open: count(open), all: count(data.length) }))),
    error ? failure(context, error) : data === null ? loading(context, t("what.alerts")) : null,
    data?.length === 0 ? h("p", { class: "quiet" }, h("span", { class: "ok", "aria-hidden": "true" }), t("alerts.none")) : null,
    h("ol", { "aria-live": "polite" }, [...ordered(present), ...ordered(earlier)].map((alert) => alertItem(alert, state, context, alert === first))),
  );
}

/** @param {Alert} alert @param {State} state @param {Context} context @param {boolean} [first] whether trouble began with it */
export function alertItem(alert, state, { t, act }, first = false) {
  const attempts = state.detail.data?.attempts ?? [];
  const attempt = overtaken(alert, attempts) ? attemptOf(alert, attempts) : null;
  const settled = alert.state === "resolved";
  const opened = alert.opened_at ? Date.parse(alert.opened_at) : null;
  const span = alert.last_step > alert.first_step ? t("step_range", { from: count(alert.first_step), to: count(alert.last_step) }) : t("at_step", { step: count(alert.first_step) });
  const status = settled ? t("alerts.resolved") : alert.acknowledged_at ? t("alerts.acknowledged") : t("alerts.firing");
  const there = { kind: tensorOf(alert) ?? state.route.kind, step: alert.first_step };
  return h(
    "li",
    { key: String(alert.id), class: `alert ${alert.severity}${settled ? " settled" : ""}${attempt === null ? "" : " earlier"}` },
    first ? h("p", { class: "tag" }, t("alerts.first")) : null,
    attempt === null ? null : h("p", { class: "tag" }, t("alerts.attempt", { n: String(attempt) })),
    h(
      "p",
      { class: "alert-head" },
      severityMark(alert.severity, settled || Boolean(alert.acknowledged_at)),
      h("strong", null, t(`alert.${alert.kind}`)),
      h("span", { class: "alert-state" }, `${t(`severity.${alert.severity}`)} \u00b7 ${status}`),
    ),
    h("p", { class: "alert-text" }, state.language === "zh" ? alert.message_zh || alert.message : alert.message),
    h(
      "p",
      { class: "alert-where" },
      h("a", { href: act.link(there) }, span),
      alert.layer === null ? null : h("a", { href: act.link({ ...there, layer: alert.layer }) }, alert.layer),
      // Without a limit that was crossed the format is where the trouble showed, which need not be where it arose.
      alert.format === null || (alert.threshold ?? null) === null ? null : formatChip(alert.format),
      alert.rank === null ? null : h("span", null, `rank ${alert.rank}`),
      opened === null ? null : h("time", { datetime: alert.opened_at }, clock(opened, state.now)),
      settled || alert.acknowledged_at || state.session?.scope !== "admin" ? null : h("button", { type: "button", onclick: () => void act.acknowledge(alert.id) }, t("alerts.acknowledge")),
    ),
  );
}
