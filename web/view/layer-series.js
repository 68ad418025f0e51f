/** The metrics of a layer one above the other: a line of means in a band from the least to the most. */

import { traceScale } from "../data/layer-series.js";
import { metricText } from "../data/text.js";
import { attachBrush } from "./brush.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";

/** @typedef {import("../data/layer-series.js").Trace} Trace */
/**
 * @typedef {object} TracesData
 * @property {readonly { steps: readonly number[], cell: number, trace: Trace }[]} rows
 * @property {import("../data/geometry.js").Range} range
 * @property {string} theme
 * @property {number | null} mark
 * @property {(range: { from: number | null, to: number | null }) => void} zoom
 * @property {Readonly<Record<string, string>>} words name of each metric
 * @property {string} bitsUnit
 */

const ROW = 62;
const HEAD = 18;
const FOOT = 8;

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createTraces(element) {
  const canvas = addCanvas(element);
  /** @type {TracesData | null} */
  let data = null;
  const stop = onResize(element, draw);
  const unbrush = attachBrush(element, () => data && { range: data.range, left: 0, right: element.clientWidth, zoom: data.zoom });

  function draw() {
    if (!data) return;
    const { rows, theme, range, mark } = data;
    const ink = inkOf(theme);
    const width = element.clientWidth;
    const context = prepare(canvas, width, rows.length * ROW);
    const x = (/** @type {number} */ step) => ((step - range.from) / (range.to + 1 - range.from)) * width;
    rows.forEach((row, i) => drawRow(context, ink, row, { top: i * ROW, width, x }));
    if (mark === null || mark < range.from || mark > range.to) return;
    context.strokeStyle = ink.text;
    line(context, x(mark + 0.5), 0, x(mark + 0.5), rows.length * ROW);
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {TracesData["rows"][number]} row
   * @param {{ top: number, width: number, x: (step: number) => number }} place
   */
  function drawRow(context, ink, { steps, cell, trace }, { top, width, x }) {
    const { words, bitsUnit } = /** @type {TracesData} */ (data);
    const { low, high, at } = traceScale(trace);
    const floor = top + ROW - FOOT;
    const y = (/** @type {number} */ share) => floor - share * (ROW - HEAD - FOOT);
    context.strokeStyle = ink.graticule;
    line(context, 0, floor + 0.5, width, floor + 0.5);
    context.textAlign = "left";
    context.fillStyle = ink.text;
    const name = words[trace.name] ?? trace.name;
    context.fillText(name, 0, top + 8);
    context.fillStyle = ink.muted;
    context.textAlign = "right";
    const said = (/** @type {number} */ value) => metricText(trace.name, value, bitsUnit);
    if (high >= low) context.fillText(high > low ? `${said(low)} \u2013 ${said(high)}` : said(low), width, top + 8);
    steps.forEach((step, i) => {
      const [least, most, mean] = [trace.least[i], trace.most[i], trace.mean[i]];
      if (least === undefined || most === undefined) return;
      const [x0, x1] = [x(step), Math.max(x(step) + 1.5, x(step + cell))];
      const [bottom, upper] = [at(least), at(most)];
      if (bottom !== undefined && upper !== undefined) {
        context.fillStyle = ink.trace;
        context.globalAlpha = 0.3;
        context.fillRect(x0, y(upper), x1 - x0, Math.max(1.5, y(bottom) - y(upper)));
        context.globalAlpha = 1;
      } else if (!Number.isFinite(most)) {
        context.fillStyle = ink.critical;
        context.fillRect(x0, y(1) - 2, x1 - x0, 3);
      }
      const middle = at(mean ?? NaN);
      if (middle === undefined) return;
      context.fillStyle = ink.trace;
      context.fillRect(x0, y(middle) - 0.75, x1 - x0, 1.5);
    });
  }

  return {
    update(next) {
      data = next;
      draw();
    },
    destroy() {
      stop();
      unbrush();
    },
  };
}
