/** Figures of one card by local time: a line each with its extremes; where nothing was read the line breaks. */

import { RIGHT, gutterFor } from "../data/geometry.js";
import { timeTicks } from "../data/cards.js";
import { tickLabel } from "../data/text.js";
import { linearTicks } from "../data/ticks.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";
import { timeLabel } from "./time-heat.js";

/** @typedef {{ readings: readonly import("../data/cards.js").Reading[], dash: readonly number[], pace: number }} Line `pace`: seconds between readings where that is not one */
/** @typedef {{ lines: readonly Line[], span: import("../data/cards.js").Span, top: number | null, limit: number | null, height: number, theme: string, width: number }} TimeChartData */

const TOP = 8;
const AXIS = 20;

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createTimeChart(element) {
  const canvas = addCanvas(element);
  /** @type {TimeChartData | null} */
  let data = null;
  const stop = onResize(element, () => draw());

  function draw() {
    if (!data) return;
    const { lines, span, height, theme, width, limit } = data;
    const context = prepare(canvas, element.clientWidth, height);
    const ink = inkOf(theme);
    const [left, right, bottom] = [gutterFor(width), element.clientWidth - RIGHT, height - AXIS];
    const highs = lines.flatMap(({ readings }) => readings.flatMap(({ high }) => (Number.isFinite(high) ? [high] : [])));
    const top = data.top ?? Math.max(1e-9, ...[highs.reduce((most, high) => Math.max(most, high), 0) * 1.08, limit ?? 0]);
    const x = (/** @type {number} */ at) => left + ((at - span.from) / (span.to - span.from)) * (right - left);
    const y = (/** @type {number} */ value) => bottom - (Math.min(value, top) / top) * (bottom - TOP);
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.graticule;
    context.textAlign = "right";
    for (const tick of linearTicks(0, top, 3)) {
      line(context, left, Math.round(y(tick)) + 0.5, right, Math.round(y(tick)) + 0.5);
      context.fillText(tickLabel(tick), left - 6, y(tick));
    }
    context.textAlign = "center";
    for (const at of timeTicks(span, (right - left) / 110, new Date(span.to * 1000).getTimezoneOffset() * 60)) {
      line(context, Math.round(x(at)) + 0.5, TOP, Math.round(x(at)) + 0.5, bottom);
      context.fillText(timeLabel(at, span.to - span.from), Math.min(right - 14, Math.max(left + 20, x(at))), height - 8);
    }
    context.strokeStyle = ink.line;
    context.strokeRect(left + 0.5, TOP + 0.5, right - left - 1, bottom - TOP - 1);
    if (limit !== null) {
      context.strokeStyle = ink.warning;
      line(context, left, y(limit), right, y(limit));
    }
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, height);
    context.clip();
    for (const one of lines) drawLine(context, one, x, y, ink.trace);
    context.restore();
  }

  return {
    update(next) {
      data = next;
      draw();
    },
    destroy: stop,
  };
}

/**
 * @param {CanvasRenderingContext2D} context @param {Line} of readings in order of time
 * @param {(at: number) => number} x @param {(value: number) => number} y @param {string} ink
 */
function drawLine(context, { readings, dash, pace }, x, y, ink) {
  context.fillStyle = `${ink}38`;
  context.strokeStyle = ink;
  context.setLineDash([...dash]);
  context.lineWidth = 1.4;
  context.beginPath();
  let before = -Infinity;
  let pen = false;
  for (const { at, cell, mean, low, high } of readings) {
    const middle = at + cell / 2;
    // A card that was not read for longer than its pace has no line there.
    if (!Number.isFinite(mean) || at - before > Math.max(5, 2.5 * cell, 2.5 * pace)) pen = false;
    before = at;
    if (!Number.isFinite(mean)) continue;
    if (pen) context.lineTo(x(middle), y(mean));
    else context.moveTo(x(middle), y(mean));
    pen = true;
    if (high > low) context.fillRect(x(at), y(high), Math.max(1, x(at + Math.max(1, cell)) - x(at)), Math.max(1, y(low) - y(high)));
  }
  context.stroke();
  // A single reading has no length.
  const seen = readings.filter(({ mean }) => Number.isFinite(mean));
  context.fillStyle = ink;
  if (seen.length === 1 && seen[0]) context.fillRect(x(seen[0].at) - 2, y(seen[0].mean) - 2, 4, 4);
  context.setLineDash([]);
  context.lineWidth = 1;
}
