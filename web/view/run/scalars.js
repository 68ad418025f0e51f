/** What the training itself says over the steps: loss, gradient norm, learning rate, loss scale, pace. */

import { number } from "../../data/json.js";
import { throughputOf } from "../../data/overview-series.js";
import { lastValue } from "../../data/series.js";
import { currentRun } from "../../state.js";
import { trace } from "../charts.js";
import { h } from "../dom.js";
import { pendingNote } from "../notes.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/series.js").Series} Series */
/** @typedef {import("../charts.js").Chart} Chart */
/** @typedef {import("../charts.js").Line} Line */
/** @typedef {{ chart: Chart, series: Series | undefined, last?: number | undefined, lines?: Line[], word?: string, axis?: string }} Shown */

/** @type {Record<"loss" | "grad_norm" | "lr" | "loss_scale" | "throughput" | "step_time_s", Chart>} */
const CHARTS = {
  loss: { name: "loss", height: 172, axis: "linear", kinds: ["loss_spike", "loss_divergence", "loss_plateau", "loss_zero", "nonfinite"], skips: false },
  grad_norm: { name: "grad_norm", height: 152, axis: "log", kinds: ["grad_norm_spike", "grad_norm_frozen", "stale_grad_norm", "clip_saturation", "nonfinite", "limit_crossed"], skips: true },
  lr: { name: "lr", height: 100, axis: "linear", kinds: ["lr_frozen"], skips: false },
  loss_scale: { name: "loss_scale", height: 112, axis: "log2", kinds: ["loss_scale_collapse"], skips: true },
  throughput: { name: "throughput", height: 100, axis: "linear", kinds: ["throughput_drop", "stalled"], skips: false },
  step_time_s: { name: "step_time_s", height: 104, axis: "log", kinds: ["straggler", "throughput_drop", "stalled"], skips: false },
};

/** Names of the loss, the first one that a run has is the chart's. */
const LOSSES = ["loss", "raw_loss", "logged/loss"];

/** Told apart without colour. @type {Record<"logged" | "most" | "limit", Pick<Line, "of" | "dash" | "stroke">>} */
const STYLES = {
  logged: { of: "values", dash: "5px,2px", stroke: "5 2" },
  most: { of: "max", dash: "1px,2px", stroke: "1 2" },
  limit: { of: "values", dash: "8px,2px,1px,2px", stroke: "8 2 1 2" },
};

/** @param {State} state @param {import("../../data/geometry.js").Range} range @param {Context} context @param {import("../chart-marks.js").Marks} marks */
export function scalars(state, range, context, marks) {
  const { t } = context;
  const { data } = state.series;
  const note = pendingNote(context, state.series, t("what.series"));
  if (note || data === null) return note;
  const shown = [loss(data, state, t), gradNorm(data, state, t), ...rest(data, state, t)];
  const drawn = shown.filter(({ series }) => series !== undefined && series.steps.length > 0);
  const known = state.detail.data?.scalars ?? {};
  const absent = shown.filter((one) => !drawn.includes(one)).map(({ chart }) => chart.name);
  const isKnown = (/** @type {string} */ name) => name in known;
  return [
    drawn.map((one) => trace(state, range, context, { rev: state.seriesRev, marks, ...one, last: one.last ?? lastValue(one.series) })),
    missing(t("scalars.outside"), absent.filter(isKnown), t),
    missing(t("scalars.none"), absent.filter((name) => !isKnown(name)), t),
  ];
}

/** Charts that would be empty, in one line. @param {string} why @param {readonly string[]} names @param {Context["t"]} t */
function missing(why, names, t) {
  return names.length === 0 ? null : h("p", { class: "scalars-missing muted" }, `${why} ${names.map((name) => t(`series.${name}`)).join(", ")}`);
}

/** The list has the newest value itself; a point of a chart may be the mean of several steps. @param {State} state @param {"loss" | "grad_norm" | "loss_scale"} name */
function newest(state, name) {
  return number(currentRun(state)?.last[name]);
}

/** @param {ReadonlyMap<string, Series>} data @param {State} state @param {Context["t"]} t @returns {Shown} */
function loss(data, state, t) {
  const [main, ...others] = present(data, LOSSES);
  const most = present(data, ["raw_loss_max"]);
  const lines = [...others.filter((other) => main && !same(main, other)), ...most].map((series) => lineOf(series, t));
  return { chart: CHARTS.loss, series: main, last: main?.name === "loss" ? newest(state, "loss") : undefined, lines, ...(main && lines.length > 0 ? { word: t(`line.${main.name}`) } : {}) };
}

/** @param {ReadonlyMap<string, Series>} data @param {State} state @param {Context["t"]} t @returns {Shown} */
function gradNorm(data, state, t) {
  const lines = present(data, ["grad_norm/clipped", "clip_norm"]).map((series) => lineOf(series, t));
  return { chart: CHARTS.grad_norm, series: data.get("grad_norm"), last: newest(state, "grad_norm"), lines, ...(lines.length > 0 ? { word: t("line.grad_norm") } : {}) };
}

/** @param {ReadonlyMap<string, Series>} data @param {State} state @param {Context["t"]} t @returns {Shown[]} */
function rest(data, state, t) {
  const pace = throughputOf(data, state.seriesRev);
  return [
    { chart: CHARTS.lr, series: data.get("lr") },
    { chart: CHARTS.loss_scale, series: data.get("loss_scale"), last: newest(state, "loss_scale") },
    { chart: CHARTS.throughput, series: pace?.series, axis: pace ? `${t(`unit.${pace.unit}_per_second`)} \u00b7 ${t("axis.linear")}` : "" },
    { chart: CHARTS.step_time_s, series: data.get("step_time_s"), axis: `${t("unit.seconds")} \u00b7 ${t("axis.log")}` },
  ];
}

/** @param {ReadonlyMap<string, Series>} data @param {readonly string[]} names @returns {Series[]} */
function present(data, names) {
  return names.flatMap((name) => data.get(name) ?? []).filter(({ steps }) => steps.length > 0);
}

/** Whether two series say the same, as where a framework's loss is logged at every step. @param {Series} a @param {Series} b */
function same(a, b) {
  return a.cell === b.cell && a.steps.length === b.steps.length && a.values.every((value, i) => value === b.values[i] || Number.isNaN(value));
}

/** @param {Series} series @param {Context["t"]} t @returns {Line} */
function lineOf(series, t) {
  const style = series.name === "raw_loss_max" ? STYLES.most : series.name === "clip_norm" ? STYLES.limit : STYLES.logged;
  return { series, ...style, word: t(`line.${series.name}`) };
}
