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
/** @typedef {import("../data/types.js").RunItem} RunItem */
/** @typedef {{ name: string, height: number, axis: "linear" | "log" | "log2", kinds: readonly string[], skips: boolean }} Chart */

/** @type {readonly Chart[]} */
const CHARTS = [
  { name: "loss", height: 168, axis: "linear", kinds: ["loss_spike", "loss_divergence", "loss_zero", "nonfinite"], skips: false },
  { name: "grad_norm", height: 148, axis: "log", kinds: ["grad_norm_spike", "grad_norm_frozen", "nonfinite", "limit_crossed"], skips: true },
  { name: "loss_scale", height: 108, axis: "log2", kinds: ["loss_scale_collapse"], skips: true },
  { name: "lr", height: 96, axis: "linear", kinds: ["lr_frozen"], skips: false },
];

/** @param {State} state @param {import("../data/geometry.js").Range} range @param {import("../main.js").Context} context */
export function charts(state, range, context) {
  const { t, act } = context;
  const { data } = state.series;
  const note = pendingNote(context, state.series, t("what.series"));
  if (note || data === null) return note;
  return CHARTS.map((chart) => {
    const series = data.get(chart.name);
    const title = t(`series.${chart.name}`);
    const alerts = alertsInView(state).filter((alert) => chart.kinds.includes(alert.kind));
    // The list has the newest value itself; a point of the chart may be the mean of several steps.
    const last = number(currentRun(state)?.last[/** @type {keyof RunItem["last"]} */ (chart.name)]) ?? lastValue(series);
    const value = chart.axis === "log2" ? powerOfTwo(last) : figure(last);
    if (!series || series.steps.length === 0) {
      return h("section", { class: "chart absent", key: chart.name, "aria-label": title }, h("h2", null, title), h("p", { class: "muted" }, t("chart.none")));
    }
    return h(
      "section",
      { class: "chart", key: chart.name, "aria-label": `${title}: ${value}`, style: { "--height": `${chart.height}px` } },
      h("div", { class: "channel" }, h("h2", null, title), h("span", { class: "channel-value" }, value), h("span", { class: "channel-axis muted" }, t(`axis.${chart.axis}`)), pngButton(state, range, title, t(`axis.${chart.axis}`), t)),
      h("div", {
        class: "plot",
        role: "img",
        "aria-label": t("chart.label", { series: title, from: count(range.from), to: count(range.to), value, alerts: count(alerts.length) }),
        island: {
          create: createPlot,
          data: {
            chart, series, rev: state.seriesRev, range, alerts, skipped: chart.skips ? state.skipped : [], theme: state.theme, width: state.width,
            mark: state.cursor?.step ?? state.route.step, ready: state.plotly, language: state.language,
            words: { skipped: t("chart.skipped"), nonfinite: t("chart.nonfinite"), step: t("axis.step"), range: t("chart.range"), title }, act,
          },
        },
      }),
    );
  });
}
