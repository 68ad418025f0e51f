/** A chart as plotly wants it: a line with its extremes, marks of alerts and of skipped steps. */

import { powerOfTwo, superscript, tickLabel } from "../data/text.js";
import { logTicks } from "../data/ticks.js";
import { MONO } from "./canvas.js";

const FONT = { family: MONO.replace("11px ", ""), size: 11 };

/**
 * @param {import("./plot.js").PlotData} data @param {import("./canvas.js").Ink} ink
 * @param {{ left: number, right: number, width: number }} place
 * @returns {{ traces: Record<string, unknown>[], layout: Record<string, unknown> }}
 */
export function figureOf({ chart, series, range, alerts, skipped, words, rev }, ink, { left, right, width }) {
  const middle = (series.cell - 1) / 2;
  const x = series.steps.map((step) => step + middle);
  const spans = series.steps.map((step) => (series.cell === 1 ? `${step}` : `${step}\u2013${step + series.cell - 1}`));
  const line = { type: "scatter", mode: "lines", x, showlegend: false };
  /** @type {Record<string, unknown>[]} */
  const traces = [];
  if (series.cell > 1) {
    // A gap would close the area across the whole chart, so cells without a finite value are left out of it.
    const whole = x.flatMap((at, i) => (Number.isFinite(series.min[i]) && Number.isFinite(series.max[i]) ? [{ at, low: series.min[i], high: series.max[i] }] : []));
    const band = { ...line, x: whole.map(({ at }) => at), line: { width: 0 }, hoverinfo: "skip" };
    traces.push({ ...band, y: whole.map(({ low }) => low) });
    traces.push({ ...band, y: whole.map(({ high }) => high), fill: "tonexty", fillcolor: faint(ink.trace) });
  }
  traces.push({
    ...line,
    y: series.values,
    customdata: spans,
    text: chart.axis === "log2" ? series.values.map(powerOfTwo) : [],
    line: { width: 1.4, color: ink.trace, shape: chart.axis === "log2" ? "hv" : "linear" },
    hovertemplate: `${words.step} %{customdata}<br>${words.title} ${chart.axis === "log2" ? "%{text}" : "%{y:.5~g}"}<extra></extra>`,
  });
  const inside = (/** @type {number} */ step) => step >= range.from && step <= range.to;
  traces.push(marks(skipped.filter(inside), words.skipped, words.step, "triangle-down", ink.warning));
  traces.push(marks(series.nonfinite.filter(inside), words.nonfinite, words.step, "x-thin-open", ink.critical));
  const shapes = alerts
    .filter((alert) => alert.last_step >= range.from && alert.first_step <= range.to)
    .map((alert) => ({
      type: "line",
      x0: alert.first_step,
      x1: alert.first_step,
      y0: 0,
      y1: 1,
      yref: "paper",
      line: { color: ink[alert.severity], width: alert.severity === "critical" ? 1.6 : 1, dash: alert.severity === "critical" ? "solid" : alert.severity === "warning" ? "dash" : "dot" },
    }));
  const grid = { gridcolor: ink.graticule, griddash: "dot", zeroline: false, linecolor: ink.line, mirror: true, tickfont: { ...FONT, color: ink.muted }, ticks: "outside", ticklen: 4, tickcolor: ink.line };
  return {
    traces,
    layout: {
      width,
      height: chart.height,
      margin: { l: left, r: right, t: 10, b: 22 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...FONT, color: ink.muted },
      hovermode: "x",
      hoverlabel: { bgcolor: ink.panel, bordercolor: ink.muted, font: { ...FONT, color: ink.text } },
      dragmode: "zoom",
      datarevision: rev,
      shapes,
      xaxis: { ...grid, range: [range.from - 0.5, range.to + 0.5], tickformat: ",d", nticks: Math.max(2, Math.floor((width - left) / 110)) },
      yaxis: { ...grid, ...yAxis(chart.axis, [...series.values, ...series.min, ...series.max]), fixedrange: true },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    },
  };
}

/** @param {"linear" | "log" | "log2"} axis @param {readonly number[]} values means and extremes: a spike of one step must stay on the axis */
function yAxis(axis, values) {
  if (!values.some(Number.isFinite)) return { nticks: 1, range: [0, 1], showticklabels: false, ticks: "" }; // figures would be made up
  if (axis === "linear") {
    const level = values.find(Number.isFinite) ?? 0;
    // Around a level line plotly would show -1 to 1, in which a learning rate looks like zero.
    const flat = level !== 0 && values.every((value) => value === level || !Number.isFinite(value));
    return { nticks: 5, tickformat: "~g", ...(flat ? { range: [Math.min(0, 2 * level), Math.max(0, 2 * level)] } : { autorange: true }) };
  }
  const logs = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log2);
  if (logs.length === 0) return { type: "log" };
  if (axis === "log") {
    const room = Math.max(0.02, (Math.max(...logs) - Math.min(...logs)) * 0.06);
    const [from, to] = [Math.min(...logs) - room, Math.max(...logs) + room];
    const ticks = logTicks(2 ** from, 2 ** to);
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

/** @param {string} hex "#rrggbb" */
function faint(hex) {
  return `${hex}38`;
}
