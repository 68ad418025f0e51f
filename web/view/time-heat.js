/** Cards by time on a canvas: one row a card, local time below, steps above. Pointer and keyboard move one cursor. */

import { colour } from "../data/scale.js";
import { css, palettes } from "../data/colour.js";
import { RIGHT, gutterFor } from "../data/geometry.js";
import { count, start } from "../data/text.js";
import { timeTicks } from "../data/cards.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";

/**
 * @typedef {object} TimeHeatData
 * @property {import("../data/cards.js").Cells} cells
 * @property {readonly string[]} names of the rows
 * @property {number} chosen row, -1 for none
 * @property {readonly { step: number, at: number }[]} steps
 * @property {{ step: number, at: number } | null} mark
 * @property {import("../data/scale.js").Scale} scale
 * @property {import("../data/colour.js").Theme} theme
 * @property {number} width of the window
 * @property {{ row: number, column: number } | null} cursor
 * @property {(cursor: { row: number, column: number } | null) => void} point
 * @property {(row: number) => void} choose
 * @property {string} stepWord
 */

const TOP = 20;
const AXIS = 22;

/** Rows are as high as leaves 64 of them on a screen. @param {number} rows */
export const rowHeight = (rows) => Math.max(7, Math.min(26, Math.floor(520 / Math.max(1, rows))));

/** @param {number} rows */
export const heatHeight = (rows) => TOP + rows * rowHeight(rows) + AXIS;

/** @param {number} at seconds @param {number} span seconds */
export function timeLabel(at, span) {
  const date = new Date(at * 1000);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (span > 4 * 86400) return day;
  if (span > 86400) return `${day} ${clock}`;
  return span > 1200 ? clock : `${clock}:${two(date.getSeconds())}`;
}

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createTimeHeat(element) {
  const canvas = addCanvas(element);
  /** @type {TimeHeatData | null} */
  let data = null;
  const stop = onResize(element, () => draw());

  function layout() {
    const { cells, names, width } = /** @type {TimeHeatData} */ (data);
    const gutter = gutterFor(width);
    const plot = Math.max(1, element.clientWidth - gutter - RIGHT);
    return { gutter, plot, each: rowHeight(names.length), column: plot / cells.columns };
  }

  function draw() {
    if (!data) return;
    const { cells, names, chosen, steps, mark, scale, theme, cursor, stepWord } = data;
    const { gutter, plot, each, column } = layout();
    const height = heatHeight(names.length);
    const context = prepare(canvas, element.clientWidth, height);
    const ink = inkOf(theme);
    const palette = palettes[theme];
    const x = (/** @type {number} */ at) => gutter + ((at - cells.span.from) / (cells.span.to - cells.span.from)) * plot;
    const bottom = TOP + names.length * each;
    context.fillStyle = css(palette.missing);
    context.fillRect(gutter, TOP, plot, bottom - TOP);
    names.forEach((_, row) => {
      for (let i = 0; i < cells.columns; i++) {
        const value = cells.mean[row * cells.columns + i] ?? NaN;
        if (Number.isNaN(value)) continue;
        context.fillStyle = css(colour(scale, palette, value));
        const left = Math.floor(gutter + i * column);
        context.fillRect(left, TOP + row * each, Math.ceil(gutter + (i + 1) * column) - left, each - 1);
      }
    });
    const font = context.font;
    if (each < 11) context.font = font.replace("11px", "9px");
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(9 / each));
    const room = Math.floor((gutter - 14) / (each < 11 ? 5.5 : 6.7));
    names.forEach((name, row) => {
      if (row % every !== 0 && row !== chosen) return;
      context.fillStyle = row === chosen ? ink.text : ink.muted;
      context.fillText(start(name, room), gutter - 8, TOP + row * each + (each - 1) / 2 + 0.5);
    });
    context.font = font;
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.line;
    context.textAlign = "center";
    const span = cells.span.to - cells.span.from;
    for (const at of timeTicks(cells.span, plot / 110, new Date(cells.span.to * 1000).getTimezoneOffset() * 60)) {
      line(context, Math.round(x(at)) + 0.5, bottom, Math.round(x(at)) + 0.5, bottom + 4);
      context.fillText(timeLabel(at, span), Math.min(element.clientWidth - 30, Math.max(gutter + 10, x(at))), bottom + 13);
    }
    context.textAlign = "right";
    context.fillText(stepWord, gutter - 8, 8);
    context.textAlign = "center";
    for (const { step, at } of steps) {
      line(context, Math.round(x(at)) + 0.5, TOP - 4, Math.round(x(at)) + 0.5, TOP);
      context.fillText(count(step), Math.min(element.clientWidth - 20, Math.max(gutter + 10, x(at))), 8);
    }
    if (mark !== null && mark.at >= cells.span.from && mark.at <= cells.span.to) {
      context.strokeStyle = ink.text;
      line(context, Math.round(x(mark.at)) + 0.5, TOP, Math.round(x(mark.at)) + 0.5, bottom);
    }
    context.strokeStyle = ink.text;
    if (chosen >= 0) context.strokeRect(gutter + 0.5, TOP + chosen * each - 0.5, plot - 1, each);
    if (cursor && cursor.row < names.length && cursor.column < cells.columns) context.strokeRect(gutter + cursor.column * column - 0.5, TOP + cursor.row * each - 0.5, Math.max(3, column + 1), each);
    element.style.setProperty("height", `${height}px`);
  }

  /** @param {{ clientX: number, clientY: number }} event */
  function cellAt({ clientX, clientY }) {
    if (!data) return null;
    const box = element.getBoundingClientRect();
    const { gutter, each, column } = layout();
    const [row, place] = [Math.floor((clientY - box.top - TOP) / each), Math.floor((clientX - box.left - gutter) / column)];
    return row < 0 || row >= data.names.length ? null : { row, column: Math.min(data.cells.columns - 1, Math.max(0, place)) };
  }

  /** The next key may come before the page is drawn anew. @param {TimeHeatData["cursor"]} cursor */
  function point(cursor) {
    if (!data) return;
    data = { ...data, cursor };
    data.point(cursor);
  }

  element.onpointermove = (event) => point(cellAt(event));
  element.onpointerleave = () => point(null);
  element.onclick = (event) => {
    const cell = cellAt(event);
    if (cell) data?.choose(cell.row);
  };
  element.onkeydown = (event) => {
    if (!data) return;
    const { cells, names, cursor } = data;
    const at = cursor ?? { row: 0, column: cells.columns - 1 };
    const moves = /** @type {Record<string, [number, number]>} */ ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });
    const move = moves[event.key];
    if (event.key === "Enter") data.choose(at.row);
    else if (event.key === "Escape") point(null);
    else if (move) point(cursor ? { row: Math.min(names.length - 1, Math.max(0, at.row + move[0])), column: Math.min(cells.columns - 1, Math.max(0, at.column + move[1])) } : at);
    else return;
    event.preventDefault();
  };

  return {
    update(next) {
      data = next;
      draw();
    },
    destroy: stop,
  };
}
