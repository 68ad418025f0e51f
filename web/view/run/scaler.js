/** The loss scaler: its scale over the steps, what it skipped and whose values made it, what the rules make of that. */

import { DESK } from "../../data/desk-route.js";
import { number } from "../../data/json.js";
import { verdictOf } from "../../data/scaler.js";
import { count, percent, powerOfTwo } from "../../data/text.js";
import { alertsInView, currentRun } from "../../state.js";
import { trace } from "../charts.js";
import { h } from "../dom.js";
import { severityMark } from "../marks.js";
import { failure, pendingNote } from "../notes.js";
import { bench } from "./layout.js";
import { operands } from "./operands.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/scaler.js").ScalerAnswer} ScalerAnswer */

/** @type {import("../charts.js").Chart} */
const SCALE = { name: "loss_scale", height: 150, axis: "log2", kinds: ["loss_scale_collapse"], skips: true };
/** @type {import("../charts.js").Chart} */
const RATE = { name: "skip_rate", height: 96, axis: "share", kinds: ["loss_scale_collapse"], skips: true };

/** States that a person should look at, with a sign of their own beside the word. @type {Record<string, import("../../data/health.js").Severity>} */
const GRAVE = { oscillating: "info", collapsing: "warning", "at minimum": "critical", "below one": "critical" };

/** @param {State} state @param {Context} context */
export function scalerTab(state, context) {
  // A layer is opened among the layers.
  return bench({ ...state, route: { ...state.route, layer: null } }, context, (range) => {
    const { status } = state.scaler;
    const note = pendingNote(context, status, context.t("what.scaler"));
    if (note || status.data === null) return [note];
    const { data, error } = status;
    const stale = error ? failure(context, error) : null;
    if (data.state === null) return [stale, absent(context), operands(state, range, context)];
    return [stale, verdict(data, context), ...charts(state, range, context), skips(state, data, context), operands(state, range, context)];
  });
}

/** @param {Context} context */
function absent({ t }) {
  return h("section", { class: "scaler-absent", "aria-labelledby": "no-scaler" }, h("h2", { id: "no-scaler" }, t("scaler.absent")), h("p", null, t("scaler.absent_why")), h("p", { class: "muted" }, t("scaler.absent_fp16")));
}

/** What the rules say now, and the figures behind it. @param {ScalerAnswer} data @param {Context} context */
function verdict(data, { t }) {
  const state = data.state ?? "";
  const word = state.replace(" ", "_");
  const severity = GRAVE[state];
  const window = data.window ?? 0;
  const steps = data.from === null || data.to === null ? 0 : data.to - data.from + 1;
  const known = data.good_steps !== null;
  /** @type {[string, string, string][]} */
  const readings = [
    [t("scaler.scale"), powerOfTwo(number(data.loss_scale)), t("scaler.highest", { scale: powerOfTwo(number(data.highest_scale)) })],
    [t("scaler.growth"), count(data.good_steps), known && data.growth_interval !== null ? t("scaler.growth_of", { n: count(data.growth_interval) }) : t("scaler.growth_unseen")],
    [t("scaler.recent", { n: count(window) }), count(data.window_skips), t("scaler.in_a_row", { n: count(data.in_a_row) })],
    [t("scaler.in_range"), count(data.skips), steps > 0 ? t("scaler.rate", { share: percent(data.skips / steps), steps: count(steps) }) : ""],
  ];
  return h(
    "section",
    { class: "verdict", "aria-labelledby": "scaler-state" },
    h(
      "div",
      { class: `verdict-state ${severity ?? "calm"}` },
      h("h2", { class: "label", id: "scaler-state" }, t("scaler.state", { step: count(data.step) })),
      h("p", { class: "verdict-word" }, severity ? severityMark(severity) : h("span", { class: "ok", "aria-hidden": "true" }), t(`scaler_is.${word}`)),
      h("p", { class: "muted" }, t(`scaler_means.${word}`)),
    ),
    h("dl", { class: "verdict-figures" }, readings.map(([label, value, more]) => h("div", null, h("dt", null, label), h("dd", { class: "figure" }, value), h("dd", { class: "muted" }, more)))),
  );
}

/** @param {State} state @param {import("../../data/geometry.js").Range} range @param {Context} context */
function charts(state, range, context) {
  const scale = state.series.data?.get("loss_scale");
  const { data: rate } = state.scaler.rate;
  const last = number(currentRun(state)?.last.loss_scale);
  return [
    trace(state, range, context, { chart: SCALE, series: scale, last, rev: state.seriesRev }),
    rate === null ? null : trace(state, range, context, { chart: RATE, series: rate, last: rate.values.at(-1), rev: 0, text: percent, axis: context.t("scaler.of_steps", { n: count(rate.cell) }) }),
  ];
}

/** @param {State} state @param {ScalerAnswer} data @param {Context} context */
function skips(state, data, context) {
  const { t, act } = context;
  const alerts = alertsInView(state);
  const several = data.optimizers.length > 1;
  const shown = data.skipped.slice(0, state.scaler.skipRows);
  const more = data.skipped.length - shown.length;
  return h(
    "section",
    { class: "skips", "aria-labelledby": "skips-title" },
    h("h2", { id: "skips-title" }, t("skips.title"), h("span", { class: "muted" }, data.skips > data.skipped.length ? t("skips.newest", { n: count(data.skipped.length), all: count(data.skips) }) : count(data.skips))),
    shown.length === 0
      ? h("p", { class: "quiet" }, h("span", { class: "ok", "aria-hidden": "true" }), t("skips.none"))
      : h(
          "div",
          { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "skips-title" },
          h(
            "table",
            { class: "table" },
            h(
              "thead",
              null,
              h("tr", null, h("th", { scope: "col", class: "figure" }, t("runs.step")), h("th", { scope: "col" }, t("skips.culprit")), h("th", { scope: "col", class: "figure" }, t("skips.rank")), several ? h("th", { scope: "col" }, t("skips.optimizer")) : null, h("th", { scope: "col", class: "figure" }, t("skips.scale")), h("th", { scope: "col" }, t("skips.verdict"))),
            ),
            h("tbody", null, shown.map((skip) => skipRow(skip, verdictOf(skip.step, alerts), several, context))),
          ),
        ),
    more > 0 ? h("button", { type: "button", onclick: act.scaler.moreSkips }, t("scaler.more", { n: count(more) })) : null,
  );
}

/**
 * @param {import("../../data/scaler.js").Skip} skip @param {import("../../data/health.js").Alert | null} alert
 * @param {boolean} several optimizers @param {Context} context
 */
function skipRow(skip, alert, several, { t, act }) {
  const there = { tab: "layers", step: skip.step, layer: skip.layer };
  const reason = alert ? `skip_is.${alert.kind}.${alert.reason}` : "";
  const said = alert && t(reason) === reason ? t(`alert.${alert.kind}`) : t(reason);
  return h(
    "tr",
    { key: skip.step },
    h("th", { scope: "row", class: "figure" }, h("a", { href: act.link({ step: skip.step }) }, count(skip.step))),
    h("td", null, skip.layer === null ? h("span", { class: "muted" }, t("skips.no_culprit")) : h("a", { class: "layer", href: act.link(there), title: skip.layer }, h("bdi", null, skip.layer))),
    h("td", { class: "figure" }, skip.rank === null ? "\u2014" : String(skip.rank)),
    several ? h("td", null, skip.optimizers.length === 0 ? "\u2014" : skip.optimizers.join(", ")) : null,
    h("td", { class: "figure" }, powerOfTwo(number(skip.scale))),
    h("td", null, alert === null ? h("span", { class: "muted" }, t("skips.unjudged")) : h("a", { class: "said", href: act.link({ page: "alerts", desk: { ...DESK, alert: String(alert.id), state: "all" } }) }, severityMark(alert.severity, alert.state === "resolved"), said, h("span", { class: "sr" }, ` ${t(`severity.${alert.severity}`)}`))),
  );
}
