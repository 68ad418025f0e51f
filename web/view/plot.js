/** A chart: a plain line at once, plotly's as soon as it is there. Charts take turns, so that no frame draws two. */

import { RIGHT, gutterFor, xOf } from "../data/geometry.js";
import { createTurns } from "../data/turns.js";
import { addCanvas, inkOf, onResize, prepare } from "./canvas.js";
import { BOTTOM, figureOf, topOf } from "./figure.js";

/**
 * @typedef {object} PlotData
 * @property {import("./charts.js").Chart} chart
 * @property {import("../data/series.js").Series} series
 * @property {number} rev
 * @property {import("../data/geometry.js").Range} range
 * @property {readonly import("../data/health.js").Alert[]} alerts
 * @property {readonly import("./charts.js").Line[]} lines
 * @property {import("./chart-marks.js").Marks | undefined} marks on the edges of the chart
 * @property {readonly number[]} skipped
 * @property {string} theme
 * @property {string} language
 * @property {number} width of the window
 * @property {number | null} mark step of the cursor
 * @property {boolean} ready plotly is loaded
 * @property {boolean} held what is shown above all the charts is on its way, or their own points
 * @property {{ skipped: string, nonfinite: string, step: string, range: string, title: string }} words
 * @property {import("../main.js").Actions} act
 */
/** @typedef {{ react: (element: HTMLElement, data: unknown[], layout: unknown, config: unknown) => Promise<unknown>, purge: (element: HTMLElement) => void }} Plotly */
/** @typedef {HTMLElement & { on: (name: string, listener: (event: any) => any) => void }} PlotElement */

const turns = createTurns(
  () => performance.now(),
  (run, ms) => {
    const timer = window.setTimeout(run, ms);
    return () => clearTimeout(timer);
  },
);

/**
 * Plotly writes its rules into style elements, which the page's policy forbids. The marker tells it that style/plot.css
 * has them; the sheet of its maps, which it adds as the script starts and which has no such switch, lands in a template.
 * @returns {Promise<boolean>} false when the library cannot be had: the plain lines stay
 */
export async function loadPlotly() {
  const marker = document.createElement("meta");
  marker.id = "plotly.js-style-global";
  marker.className = "no-inline-styles";
  const script = document.createElement("script");
  script.src = new URL("../plotly.min.js", import.meta.url).href;
  const { createElement } = document;
  document.createElement = (/** @type {string} */ tag, /** @type {ElementCreationOptions | undefined} */ options) =>
    createElement.call(document, tag === "style" ? "template" : tag, options);
  try {
    return await new Promise((resolve) => {
      script.onload = () => resolve(true);
      script.onerror = () => resolve(false);
      document.head.append(marker, script);
    });
  } finally {
    document.createElement = createElement;
  }
}

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createPlot(element) {
  const host = document.createElement("div");
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  element.append(host, cursor);
  const canvas = addCanvas(host);
  /** @type {PlotData | null} */
  let data = null;
  /** @type {unknown[]} */
  let drawn = [];
  /** @type {PlotElement | null} */
  let plot = null;
  const stop = onResize(element, () => {
    drawn = [];
    draw();
  });

  function draw() {
    if (!data || element.clientWidth === 0) return; // not in the document yet
    const { series, rev, range, alerts, marks, lines, skipped, theme, width, ready, language } = data;
    const inputs = [series, rev, range.from, range.to, alerts.length, alerts.at(-1), marks?.sign, lines.length, skipped.length, theme, width, ready, language];
    placeCursor();
    if (!inputs.some((input, i) => input !== drawn[i])) return;
    // A new revision alone is the run going on; anything else was asked for or moves the axis of all traces.
    const urgent = inputs.some((input, i) => input !== drawn[i] && i !== 1);
    drawn = inputs;
    if (ready) turns.take(drawFigure, urgent);
    else drawLine();
  }

  function placeCursor() {
    const { range, mark, width } = /** @type {PlotData} */ (data);
    const shown = mark !== null && mark >= range.from && mark <= range.to;
    cursor.hidden = !shown;
    if (shown) cursor.style.transform = `translateX(${Math.round(xOf(mark + 0.5, range, gutterFor(width), element.clientWidth))}px)`;
  }

  function drawLine() {
    const { chart, series, range, theme, width, marks } = /** @type {PlotData} */ (data);
    const context = prepare(canvas, element.clientWidth, chart.height);
    const y = (/** @type {number} */ value) => (chart.axis.startsWith("log") ? Math.log2(value) : value);
    const reach = (/** @type {readonly number[]} */ values, /** @type {(a: number, b: number) => number} */ choose, /** @type {number} */ start) => values.map(y).filter(Number.isFinite).reduce(choose, start);
    const low = reach([...series.values, ...series.min], (a, b) => Math.min(a, b), Infinity);
    const high = reach([...series.values, ...series.max], (a, b) => Math.max(a, b), -Infinity);
    const top = topOf(marks);
    const down = (/** @type {number} */ value) => top + (1 - (y(value) - low) / (high - low || 1)) * (chart.height - top - BOTTOM);
    const across = (/** @type {number} */ step) => xOf(step + series.cell / 2, range, gutterFor(width), element.clientWidth);
    context.strokeStyle = `${inkOf(theme).trace}a0`;
    context.beginPath();
    if (series.cell > 1) {
      series.steps.forEach((step, i) => {
        const [least, most] = [down(series.min[i] ?? NaN), down(series.max[i] ?? NaN)];
        if (!Number.isFinite(least) || !Number.isFinite(most)) return;
        context.moveTo(across(step), least);
        context.lineTo(across(step), most);
      });
    }
    context.stroke();
    context.strokeStyle = inkOf(theme).trace;
    context.beginPath();
    series.steps.forEach((step, i) => {
      const at = down(series.values[i] ?? NaN);
      if (Number.isFinite(at)) context.lineTo(across(step), at);
    });
    context.stroke();
  }

  function drawFigure() {
    if (!data || !element.isConnected) return;
    const plotly = /** @type {{ Plotly: Plotly }} */ (/** @type {unknown} */ (window)).Plotly;
    const { traces, layout } = figureOf(data, inkOf(data.theme), { left: gutterFor(data.width), right: RIGHT, width: element.clientWidth });
    canvas.remove();
    void plotly.react(host, traces, layout, { displayModeBar: false, doubleClick: false, showTips: false });
    if (plot) return;
    plot = /** @type {PlotElement} */ (/** @type {HTMLElement} */ (host));
    plot.on("plotly_hover", (event) => data?.act.point({ step: Math.round(event.xvals?.[0] ?? event.points[0].x), row: -1 }));
    plot.on("plotly_unhover", () => data?.act.point(null));
    plot.on("plotly_doubleclick", () => data?.act.navigate({ from: null, to: null }));
    plot.on("plotly_relayout", (event) => {
      const [from, to] = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (from === undefined || to === undefined) return;
      data?.act.navigate({ from: Math.max(0, Math.round(from)), to: Math.max(0, Math.round(to)) });
    });
  }

  return {
    update(next) {
      data = next;
      turns.hold(next.held);
      draw();
    },
    destroy() {
      stop();
      turns.drop(drawFigure);
      if (plot) /** @type {{ Plotly: Plotly }} */ (/** @type {unknown} */ (window)).Plotly.purge(host);
    },
  };
}
