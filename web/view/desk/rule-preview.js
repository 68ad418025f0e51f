/** What rules would have done in a run that is recorded. */

import { ordered } from "../../data/health.js";
import { SEVERITIES } from "../../data/desk-route.js";
import { count } from "../../data/text.js";
import { h } from "../dom.js";
import { severityMark } from "../marks.js";

/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

const LISTED = 30;

/** @param {State} state @param {Context} context */
export function previewed(state, { t, act }) {
  const { preview } = state.desk;
  if (preview === null) return null;
  const { run, answer } = preview;
  const alerts = ordered(answer.alerts.filter((alert) => alert.resolved_reason !== "superseded"));
  const tallies = SEVERITIES.map((severity) => /** @type {const} */ ([severity, alerts.filter((alert) => alert.severity === severity).length])).filter(([, n]) => n > 0);
  const blind = answer.from_step !== null && (answer.tensors_from_step === null || answer.tensors_from_step > answer.from_step);
  return h(
    "section",
    { class: "preview", key: "preview", role: "status", "aria-label": t("rule.preview") },
    h("h2", null, t(alerts.length === 1 ? "rule.once" : "rule.times", { n: count(alerts.length) }), " ", h("code", null, run), tallies.map(([severity, n]) => h("span", { key: severity, class: "tally" }, severityMark(severity), n, h("span", { class: "sr" }, t(`severity.${severity}`))))),
    answer.from_step === null ? h("p", { class: "muted" }, t("run.no_steps")) : h("p", { class: "muted" }, t("rule.reach", { from: count(answer.from_step) }), blind ? ` ${answer.tensors_from_step === null ? t("rule.no_tensors") : t("rule.tensors_from", { from: count(answer.tensors_from_step) })}` : ""),
    h(
      "ul",
      { class: "plain-list" },
      alerts.slice(0, LISTED).map((alert, i) =>
        h(
          "li",
          { key: String(i), class: "preview-line" },
          severityMark(alert.severity),
          h("span", { class: "sr" }, t(`severity.${alert.severity}`)),
          h("strong", null, t(`alert.${alert.kind}`)),
          h("a", { class: "figure", href: act.link({ page: "run", run, step: alert.first_step, layer: alert.layer }) }, t("at_step", { step: count(alert.first_step) })),
          h("span", { class: "gist" }, state.language === "zh" ? alert.message_zh : alert.message),
        ),
      ),
    ),
    alerts.length > LISTED ? h("p", { class: "muted" }, t("desk.and_more", { n: count(alerts.length - LISTED) })) : null,
  );
}
