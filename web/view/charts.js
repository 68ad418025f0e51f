/** One series over the steps on the common axis, with what is to be seen beside it. */

import { count, figure, powerOfTwo } from "../data/text.js";
import { alertsInView } from "../state.js";
import { rail } from "./chart-marks.js";
import { h } from "./dom.js";
import { createPlot } from "./plot.js";
import { pngButton } from "./png.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../data/series.js").Series} Series */
/** @typedef {{ name: string, height: number, axis: import("./figure.js").Axis, kinds: readonly string[], skips: boolean }} Chart */
/**
 * @typedef {object} Line another one in the chart, of the same quantity
 * @property {Series} series
 * @property {"values" | "max"} of
 * @property {string} dash as plotly knows it
 * @property {string} stroke the same for an svg
 * @property {string} word
 */

/**
 * @param {State} state @param {import("../data/geometry.js").Range} range @param {Context} context
 * @param {object} what
 * @param {Chart} what.chart
 * @param {Series | undefined} what.series
 * @param {number | undefined} what.last the newest value
 * @param {number} what.rev another one whenever the series has changed in place
 * @param {(value: number | undefined) => string} [what.text] the value as text
 * @param {string} [what.axis] what stands under the value in place of the axis's kind
 * @param {string} [what.layer] alerts of this layer only
 * @param {readonly Line[]} [what.lines]
 * @param {string} [what.word] what the series is called among `lines`
 * @param {import("./chart-marks.js").Marks} [what.marks] of everything that happened, on the chart's edges
 */
export function trace(state, range, { t, act }, { chart, series, last, rev, text, axis, layer, lines = [], word = "", marks }) {
  const title = t(`series.${chart.name}`);
  const write = text ?? (chart.axis === "log2" ? powerOfTwo : figure);
  const value = write(last);
  if (!series || series.steps.length === 0) {
    return h("section", { class: "chart absent", key: chart.name, "aria-label": title }, h("h2", null, title), h("p", { class: "muted" }, t("chart.none")));
  }
  const alerts = alertsInView(state).filter((alert) => chart.kinds.includes(alert.kind) && (layer === undefined || alert.layer === layer));
  const scale = axis ?? t(`axis.${chart.axis}`);
  return h(
    "section",
    { class: "chart", key: chart.name, "aria-label": `${title}: ${value}`, style: { "--height": `${chart.height}px` } },
    h(
      "div",
      { class: "channel" },
      h("h2", null, title),
      h("span", { class: "channel-value" }, value),
      h("span", { class: "channel-axis muted" }, scale),
      lines.length === 0 ? null : h("ul", { class: "key" }, [keyOf("", word), ...lines.map((line) => keyOf(line.stroke, line.word, write(line.series[line.of].at(-1))))]),
      pngButton(state, range, title, scale, t),
    ),
    h(
      "div",
      { class: "plot-frame" },
      h("div", {
        class: "plot",
        role: "img",
        "aria-label": t("chart.label", { series: title, from: count(range.from), to: count(range.to), value, alerts: count(alerts.length) }),
        island: {
          create: createPlot,
          data: {
            chart, series, rev, range, alerts, lines, marks, skipped: chart.skips ? state.skipped : [], theme: state.theme, width: state.width,
            mark: state.cursor?.step ?? state.route.step, ready: state.plotly, held: state.heat.status === "loading" || state.series.status === "loading", language: state.language,
            words: { skipped: t("chart.skipped"), nonfinite: t("chart.nonfinite"), step: t("axis.step"), range: t("chart.range"), title: word || title }, act,
          },
        },
      }),
      marks ? rail(marks) : null,
    ),
  );
}

/** @param {string} stroke @param {string} word @param {string} [value] the newest, where it does not stand above */
function keyOf(stroke, word, value) {
  return h(
    "li",
    { key: word },
    h("svg", { class: stroke === "" ? "key-line main" : "key-line", viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" }, h("path", { d: "M0 4h18", "stroke-dasharray": stroke || undefined })),
    h("span", { class: "key-word", title: word }, word),
    value === undefined ? null : h("span", { class: "figure" }, value),
  );
}
