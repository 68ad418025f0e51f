/** A chart as plotly wants it: a line with its extremes, marks of alerts and of skipped steps. */

import { alertStep, alertWeight, marksOf } from "../data/chart-marks.js";
import { powerOfTwo, superscript, tickLabel } from "../data/text.js";
import { logTicks } from "../data/ticks.js";
import { MONO } from "./canvas.js";

const FONT = { family: MONO.replace("11px ", ""), size: 11 };

/** Opacity of the envelope and of its edge, in hex: one step of 100,000 is little more than its edge. */
const [FILL, STROKE] = ["30", "a0"];

/** Pixels below the frame of a chart. */
export const BOTTOM = 22;

/** Lines across a chart beyond which they would be what is seen: then they are short, under their marks. */
const CROSSING = 10;

/** Times the largest value. */
const FAR = 32;

/** Pixels between two labels of an axis. */
const APART = 15;

/** Pixels above the frame of a chart. @param {unknown} known marks on its edge */
export const topOf = (known) => (known ? 15 : 10);

/**
 * @param {import("./plot.js").PlotData} data @param {import("./canvas.js").Ink} ink
 * @param {{ left: number, right: number, width: number }} place
 * @returns {{ traces: Record<string, unknown>[], layout: Record<string, unknown> }}
 */
export function figureOf({ chart, series, range, alerts, skipped, lines, marks: known, words, rev }, ink, { left, right, width }) {
  const middle = (series.cell - 1) / 2;
  const x = series.steps.map((step) => step + middle);
  const spans = series.steps.map((step) => (series.cell === 1 ? `${step}` : `${step}\u2013${step + series.cell - 1}`));
  const line = { type: "scatter", mode: "lines", x, showlegend: false };
  /** @type {Record<string, unknown>[]} */
  const traces = [];
  if (series.cell > 1) traces.push({ ...line, ...envelope(series, x), line: { width: 1, color: `${ink.trace}${STROKE}` }, fill: "toself", fillcolor: `${ink.trace}${FILL}`, hoverinfo: "skip" });
  for (const other of lines) {
    traces.push({
      ...line,
      x: other.series.steps.map((step) => step + (other.series.cell - 1) / 2),
      y: other.series[other.of],
      line: { width: 1.2, color: ink.muted, dash: other.dash },
      hovertemplate: `${other.word} %{y:.5~g}<extra></extra>`,
    });
  }
  traces.push({
    ...line,
    y: series.values,
    customdata: spans,
    text: chart.axis === "log2" ? series.values.map(powerOfTwo) : [],
    line: { width: 1.4, color: ink.trace, shape: chart.axis === "log2" ? "hv" : "linear" },
    hovertemplate: `${words.step} %{customdata}<br>${words.title} ${chart.axis === "log2" ? "%{text}" : "%{y:.5~g}"}<extra></extra>`,
  });
  // A run of one step, and a value between two that are not finite, have no line.
  const alone = series.values.flatMap((value, i) => (Number.isFinite(value) && !Number.isFinite(series.values[i - 1]) && !Number.isFinite(series.values[i + 1]) ? [i] : []));
  if (alone.length > 0) traces.push({ ...line, mode: "markers", x: alone.map((i) => x[i]), y: alone.map((i) => series.values[i]), marker: { size: 4, color: ink.trace }, hoverinfo: "skip" });
  const inside = (/** @type {number} */ step) => step >= range.from && step <= range.to;
  traces.push(marks(skipped.filter(inside), words.skipped, words.step, "triangle-down", ink.warning));
  traces.push(marks(series.nonfinite.filter(inside), words.nonfinite, words.step, "x-thin-open", ink.critical));
  const placed = alertStep(range);
  const spots = marksOf(alerts, placed, range, width - left - right, alertWeight);
  const said = spots.map(({ at }) => upright(placed(at), known && spots.length > CROSSING ? 0.84 : 0, 1, ink[at.severity], at.severity));
  const others = (known?.alerts ?? []).map(({ at }) => upright(placed(at), 0.94, 1, ink[at.severity], at.severity));
  const saved = (known?.saved ?? []).map(({ first }) => upright(first, 0, 0.06, ink.text));
  const shapes = [...said, ...others, ...saved];
  const own = [...series.values, ...series.min, ...series.max];
  const grid = { gridcolor: ink.graticule, griddash: "dot", zeroline: false, linecolor: ink.line, mirror: true, tickfont: { ...FONT, color: ink.muted }, ticks: "outside", ticklen: 4, tickcolor: ink.line };
  return {
    traces,
    layout: {
      width,
      height: chart.height,
      margin: { l: left, r: right, t: topOf(known), b: BOTTOM },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...FONT, color: ink.muted },
      hovermode: "x",
      hoverlabel: { bgcolor: ink.panel, bordercolor: ink.muted, font: { ...FONT, color: ink.text } },
      dragmode: "zoom",
      datarevision: rev,
      shapes,
      xaxis: { ...grid, range: [range.from - 0.5, range.to + 0.5], tickformat: ",d", ...stepsApart(range, Math.max(2, Math.floor((width - left) / 110))) },
      yaxis: { ...grid, ...yAxis(chart.axis, chart.height - topOf(known) - BOTTOM, [...own, ...near(lines, own)]), fixedrange: true },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    },
  };
}

/** @typedef {"linear" | "log" | "log2" | "share"} Axis share: in percent */

/** @param {Axis} axis @param {number} height of the frame @param {readonly number[]} values means and extremes: a spike of one step must stay on the axis */
export function yAxis(axis, height, values) {
  if (!values.some(Number.isFinite)) return { nticks: 1, range: [0, 1], showticklabels: false, ticks: "" }; // figures would be made up
  if (axis === "share") return { nticks: 5, tickformat: "~%", rangemode: "tozero", autorange: true };
  if (axis === "linear") {
    const level = values.find(Number.isFinite) ?? 0;
    // Around a level line plotly would show -1 to 1, in which a learning rate looks like zero.
    // A mean of equal values differs from them in its last digits.
    const flat = level !== 0 && values.every((value) => Math.abs(value - level) <= 1e-9 * Math.abs(level) || !Number.isFinite(value));
    return { nticks: 5, tickformat: "~g", ...(flat ? { range: [Math.min(0, 2 * level), Math.max(0, 2 * level)] } : { autorange: true }) };
  }
  const logs = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log2);
  if (logs.length === 0) return { type: "log" };
  if (axis === "log") {
    const room = Math.max(0.02, (Math.max(...logs) - Math.min(...logs)) * 0.06);
    const [from, to] = [Math.min(...logs) - room, Math.max(...logs) + room];
    const ticks = roomy(logTicks(2 ** from, 2 ** to), height / (to - from));
    return { type: "log", range: [from * Math.log10(2), to * Math.log10(2)], tickvals: ticks, ticktext: ticks.map(tickLabel), minor: { dtick: "D1", ticklen: 2, ticks: "outside" } };
  }
  const low = Math.floor(Math.min(...logs)) - 1;
  const high = Math.ceil(Math.max(...logs)) + 1;
  const every = Math.max(1, Math.ceil((high - low) / 4));
  const powers = Array.from({ length: Math.floor((high - low) / every) + 1 }, (_, i) => low + i * every);
  return { type: "log", range: [low * Math.log10(2), high * Math.log10(2)], tickvals: powers.map((power) => 2 ** power), ticktext: powers.map((power) => `2${superscript(power)}`) };
}

/** Marks on the upper edge. @param {readonly number[]} steps @param {string} what @param {string} stepWord @param {string} symbol @param {string} color */
function marks(steps, what, stepWord, symbol, color) {
  return {
    type: "scatter",
    mode: "markers",
    x: steps,
    y: steps.map(() => 0.96),
    yaxis: "y2",
    showlegend: false,
    cliponaxis: false,
    marker: { symbol, size: 8, color, line: { width: symbol === "x-thin-open" ? 2 : 0, color } },
    hovertemplate: `${stepWord} %{x}<br>${what}<extra></extra>`,
  };
}

/** Steps are whole: between few of them plotly would repeat their numbers. @param {import("../data/geometry.js").Range} range @param {number} most labels */
function stepsApart({ from, to }, most) {
  return to - from < most ? { dtick: 1, tick0: 0 } : { nticks: most };
}

/**
 * What of the other lines belongs on the axis: a limit that is far away would flatten all that moves.
 * @param {readonly import("./charts.js").Line[]} lines @param {readonly number[]} own
 */
function near(lines, own) {
  const top = own.reduce((most, value) => (Number.isFinite(value) && value > most ? value : most), 0);
  return lines.flatMap((other) => other.series[other.of].filter((value) => value <= FAR * top));
}

/** Those whose labels do not touch; powers of ten go first. @param {readonly number[]} ticks @param {number} octave pixels */
function roomy(ticks, octave) {
  /** @type {number[]} */
  const kept = [];
  const round = (/** @type {number} */ tick) => Number.isInteger(Math.log10(tick));
  for (const tick of [...ticks.filter(round), ...ticks.filter((tick) => !round(tick))]) {
    if (kept.every((other) => Math.abs(Math.log2(tick / other)) * octave >= APART)) kept.push(tick);
  }
  return kept.sort((a, b) => a - b);
}

/**
 * Least and most of each cell as closed outlines, one for each stretch of cells with finite values.
 * @param {import("../data/series.js").Series} series @param {readonly number[]} x @returns {{ x: (number | null)[], y: (number | null)[] }}
 */
function envelope({ min, max }, x) {
  /** @type {{ x: (number | null)[], y: (number | null)[] }} */
  const out = { x: [], y: [] };
  for (let from = 0; from < x.length; from++) {
    let to = from;
    while (to < x.length && Number.isFinite(min[to]) && Number.isFinite(max[to])) to += 1;
    if (to === from) continue;
    if (out.x.length > 0) (out.x.push(null), out.y.push(null));
    out.x.push(...x.slice(from, to), ...x.slice(from, to).reverse(), x[from] ?? null);
    out.y.push(...min.slice(from, to), ...max.slice(from, to).reverse(), min[from] ?? null);
    from = to;
  }
  return out;
}

/** @type {Record<string, [number, string]>} width and dash */
const STROKES = { critical: [1.6, "solid"], warning: [1, "dash"], info: [1, "dot"] };

/**
 * A line at one step. @param {number} step @param {number} from @param {number} to shares of the height @param {string} color @param {string} [severity]
 */
function upright(step, from, to, color, severity = "") {
  const [width, dash] = STROKES[severity] ?? [1.2, "solid"];
  return { type: "line", layer: "below", x0: step, x1: step, y0: from, y1: to, yref: "paper", line: { color, width, dash } };
}
