/** Scalars on the common axis: loss, gradient norm, loss scale, learning rate. */

import { number } from "../data/json.js";
import { lastValue } from "../data/series.js";
import { count, figure, powerOfTwo } from "../data/text.js";
import { alertsInView, currentRun } from "../state.js";
import { h } from "./dom.js";
import { pendingNote } from "./notes.js";
import { createPlot } from "./plot.js";
import { pngButton } from "./png.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../data/types.js").RunItem} RunItem */
/** @typedef {{ name: string, height: number, axis: "linear" | "log" | "log2", kinds: readonly string[], skips: boolean }} Chart */

/** @type {readonly Chart[]} */
const CHARTS = [
  { name: "loss", height: 168, axis: "linear", kinds: ["loss_spike", "loss_divergence", "loss_zero", "nonfinite"], skips: false },
  { name: "grad_norm", height: 148, axis: "log", kinds: ["grad_norm_spike", "grad_norm_frozen", "nonfinite", "limit_crossed"], skips: true },
  { name: "loss_scale", height: 108, axis: "log2", kinds: ["loss_scale_collapse"], skips: true },
  { name: "lr", height: 96, axis: "linear", kinds: ["lr_frozen"], skips: false },
];

/** @param {State} state @param {import("../data/geometry.js").Range} range @param {Context} context */
export function charts(state, range, context) {
  const { t } = context;
  const { data } = state.series;
  const note = pendingNote(context, state.series, t("what.series"));
  if (note || data === null) return note;
  return CHARTS.map((chart) => {
    const series = data.get(chart.name);
    // The list has the newest value itself; a point of the chart may be the mean of several steps.
    const last = number(currentRun(state)?.last[/** @type {keyof RunItem["last"]} */ (chart.name)]) ?? lastValue(series);
    return trace(state, range, context, { chart, series, last, rev: state.seriesRev });
  });
}

/**
 * One series over the steps, with the alerts of its rules.
 * @param {State} state @param {import("../data/geometry.js").Range} range @param {Context} context
 * @param {object} what
 * @param {Chart} what.chart
 * @param {import("../data/series.js").Series | undefined} what.series
 * @param {number | undefined} what.last the newest value
 * @param {number} what.rev another one whenever the series has changed in place
 * @param {(value: number | undefined) => string} [what.text] the value as text
 * @param {string} [what.axis] what stands under the value in place of the axis's kind
 * @param {string} [what.layer] alerts of this layer only
 */
export function trace(state, range, { t, act }, { chart, series, last, rev, text, axis, layer }) {
  const title = t(`series.${chart.name}`);
  const value = (text ?? (chart.axis === "log2" ? powerOfTwo : figure))(last);
  if (!series || series.steps.length === 0) {
    return h("section", { class: "chart absent", key: chart.name, "aria-label": title }, h("h2", null, title), h("p", { class: "muted" }, t("chart.none")));
  }
  const alerts = alertsInView(state).filter((alert) => chart.kinds.includes(alert.kind) && (layer === undefined || alert.layer === layer));
  return h(
    "section",
    { class: "chart", key: chart.name, "aria-label": `${title}: ${value}`, style: { "--height": `${chart.height}px` } },
    h("div", { class: "channel" }, h("h2", null, title), h("span", { class: "channel-value" }, value), h("span", { class: "channel-axis muted" }, axis ?? t(`axis.${chart.axis}`)), pngButton(state, range, title, axis ?? t(`axis.${chart.axis}`), t)),
    h("div", {
      class: "plot",
      role: "img",
      "aria-label": t("chart.label", { series: title, from: count(range.from), to: count(range.to), value, alerts: count(alerts.length) }),
      island: {
        create: createPlot,
        data: {
          chart, series, rev, range, alerts, skipped: chart.skips ? state.skipped : [], theme: state.theme, width: state.width,
          mark: state.cursor?.step ?? state.route.step, ready: state.plotly, language: state.language,
          words: { skipped: t("chart.skipped"), nonfinite: t("chart.nonfinite"), step: t("axis.step"), range: t("chart.range"), title }, act,
        },
      },
    }),
  );
}
