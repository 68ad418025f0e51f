/** The heat map's own canvases: cells below, axes, marks and cursor above. Pointer and keyboard move one cursor. */

import { palettes } from "../data/colour.js";
import { PHONE, RIGHT, blockOf, gutterFor, linesFor, shortBlock, stepAt, xOf } from "../data/geometry.js";
import { columnOf, poolRows, worstRow } from "../data/grid.js";
import { tensorOf } from "../data/health.js";
import { drawCells } from "../data/heatmap.js";
import { paint } from "../data/scale.js";
import { count, tail } from "../data/text.js";
import { stepTicks } from "../data/ticks.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";
import { attachInput } from "./heat-input.js";
import { attachTouch } from "./heat-touch.js";

/**
 * @typedef {object} HeatData
 * @property {import("../data/grid.js").Grid} grid
 * @property {number} rev
 * @property {import("../data/geometry.js").Range} range
 * @property {import("../data/scale.js").Scale} scale
 * @property {import("../data/colour.js").Theme} theme
 * @property {number} width of the window
 * @property {import("../state.js").Cursor | null} cursor
 * @property {import("../data/route.js").Route} route
 * @property {readonly import("../data/health.js").Alert[]} alerts
 * @property {ReadonlyMap<string, number> | null} lineOf layer's name -> line it is drawn in; null: line by line as the grid has them
 * @property {number} room height in pixels that the lines may take
 * @property {(line: import("../data/grid.js").HeatLayer, step: number) => void} open
 * @property {string} stepWord
 * @property {import("../main.js").Actions} act
 */
/** @typedef {{ gutter: number, width: number, lines: number, each: number, height: number, total: number }} Layout */

/** Of layers as they are drawn: block of each, and row by name. @type {WeakMap<readonly import("../data/grid.js").HeatLayer[], { blocks: string[], rowOf: Map<string, number> }>} */
const named = new WeakMap();

/** @param {readonly import("../data/grid.js").HeatLayer[]} layers */
function namesOf(layers) {
  const held = named.get(layers) ?? { blocks: layers.map(({ name }) => blockOf(name)), rowOf: new Map(layers.map(({ name }, row) => [name, row])) };
  named.set(layers, held);
  return held;
}

const TOP = 6;
const AXIS = 26;

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createHeat(element) {
  const cells = addCanvas(element, "cells");
  const over = addCanvas(element, "over");
  /** @type {HeatData | null} */
  let data = null;
  /** @type {unknown[]} */
  let drawn = [];
  /** @type {{ from: number, to: number } | null} */
  let drag = null;
  /** What two fingers ask for until the page has it. @type {import("../data/geometry.js").Range | null} */
  let preview = null;
  const stopResize = onResize(element, () => draw());
  const touch = attachTouch(element, () => data, (range) => {
    preview = range;
    draw();
  });

  /** @returns {Layout} */
  function layout() {
    const { grid, width, room } = /** @type {HeatData} */ (data);
    const fit = linesFor(grid.meta.layers.length, width < PHONE ? Math.min(340, room) : room);
    return { gutter: gutterFor(width), width: element.clientWidth, ...fit, total: fit.lines * fit.height };
  }

  /** The cell at a point of the element, in CSS pixels. @param {number} x @param {number} y @returns {import("../state.js").Cursor} */
  function cellAt(x, y) {
    const { grid, range } = /** @type {HeatData} */ (data);
    const { gutter, width, lines, each, height } = layout();
    const step = stepAt(x, range, gutter, width);
    const start = Math.min(lines - 1, Math.max(0, Math.floor((y - TOP) / height))) * each;
    return { step, row: worstRow(grid, columnOf(grid, step), start, Math.min(start + each, grid.meta.layers.length)) };
  }

  function draw() {
    if (!data) return;
    const place = layout();
    element.style.height = `${TOP + place.total + AXIS}px`;
    // Not in the document yet: the observer tells when it has a width. To paint twice would take longer than all the rest.
    if (place.width === 0) return;
    const { grid, rev, scale, theme } = data;
    const range = preview ?? data.range;
    const inputs = [grid, rev, range.from, range.to, scale.low, scale.high, theme, place.width, place.total, devicePixelRatio];
    if (inputs.some((input, i) => input !== drawn[i])) drawPixels(place);
    drawn = inputs;
    drawOver(place);
  }

  /** @param {Layout} place */
  function drawPixels(place) {
    const { grid, scale, theme } = /** @type {HeatData} */ (data);
    const range = preview ?? /** @type {HeatData} */ (data).range;
    const density = devicePixelRatio || 1;
    const plot = place.width - place.gutter - RIGHT;
    const width = Math.max(1, Math.round(plot * density));
    const height = Math.max(1, Math.round(place.total * density));
    cells.style.left = `${place.gutter}px`;
    cells.style.top = `${TOP}px`;
    const context = prepare(cells, plot, place.total);
    const image = context.createImageData(width, height);
    const pooled = poolRows(grid, place.lines);
    const left = (xOf(grid.first, range, 0, plot + RIGHT)) * density;
    const right = (xOf(grid.first + grid.columns * grid.cell, range, 0, plot + RIGHT)) * density;
    drawCells(paint(scale, palettes[theme], pooled.bits), pooled.lines, pooled.columns, new Uint32Array(image.data.buffer), { width, height, left, right, density }, palettes[theme]);
    context.putImageData(image, 0, 0);
  }

  /** @param {Layout} place */
  function drawOver(place) {
    const { grid, theme, cursor, route, alerts, lineOf, stepWord } = /** @type {HeatData} */ (data);
    const range = preview ?? /** @type {HeatData} */ (data).range;
    const ink = inkOf(theme);
    const { gutter, width, height, each, total } = place;
    const context = prepare(over, width, TOP + total + AXIS);
    const yOf = (/** @type {number} */ row) => TOP + Math.floor(row / each) * height;
    labels(context, ink, place, yOf);
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.muted;
    context.textAlign = "center";
    for (const step of stepTicks(range.from, range.to, (width - gutter) / 110)) {
      const x = Math.round(xOf(step + 0.5, range, gutter, width)) + 0.5;
      line(context, x, TOP + total, x, TOP + total + 5);
      context.fillText(count(step), Math.min(x, width - 22), TOP + total + 14);
    }
    context.textAlign = "right";
    context.fillText(stepWord, gutter - 8, TOP + total + 14);
    context.strokeStyle = ink.line;
    context.strokeRect(gutter - 0.5, TOP - 0.5, width - gutter - RIGHT + 1, total + 1);
    for (const alert of alerts) {
      const row = (lineOf ?? namesOf(grid.meta.layers).rowOf).get(alert.layer ?? "") ?? -1;
      if (row < 0 || alert.last_step < range.from || alert.first_step > range.to) continue;
      if ((tensorOf(alert) ?? grid.meta.kind) !== grid.meta.kind) continue;
      const x0 = Math.max(gutter, xOf(alert.first_step, range, gutter, width));
      const x1 = Math.min(width - RIGHT, xOf(alert.last_step + 1, range, gutter, width));
      context.strokeStyle = ink.text;
      context.fillStyle = ink[alert.severity];
      context.strokeRect(Math.round(x0) - 1.5, yOf(row) - 1.5, Math.max(4, Math.round(x1 - x0)) + 3, height + 3);
      context.beginPath();
      context.moveTo(x0 - 9, yOf(row) + height / 2 - 4);
      context.lineTo(x0 - 9, yOf(row) + height / 2 + 4);
      context.lineTo(x0 - 2.5, yOf(row) + height / 2);
      context.fill();
    }
    const mark = cursor?.step ?? route.step;
    if (mark !== null && mark >= range.from && mark <= range.to) {
      const x = Math.round(xOf(mark + 0.5, range, gutter, width)) + 0.5;
      context.strokeStyle = ink.text;
      context.setLineDash(cursor ? [] : [3, 3]);
      line(context, x, 0, x, TOP + total + 6);
      context.setLineDash([]);
    }
    if (cursor && cursor.row >= 0) {
      const column = columnOf(grid, cursor.step);
      const x0 = Math.max(gutter, xOf(grid.first + column * grid.cell, range, gutter, width));
      const x1 = xOf(grid.first + (column + 1) * grid.cell, range, gutter, width);
      context.strokeStyle = ink.text;
      context.lineWidth = 2;
      context.strokeRect(x0 - 1, yOf(cursor.row) - 1, Math.max(3, x1 - x0) + 2, height + 2);
      context.lineWidth = 1;
      const text = tail(grid.meta.layers[cursor.row]?.name ?? "", Math.floor((gutter - 14) / 6.7));
      context.fillStyle = ink.text;
      context.fillRect(0, yOf(cursor.row) + height / 2 - 8, gutter - 3, 16);
      context.fillStyle = ink.bg;
      context.textAlign = "right";
      context.fillText(text, gutter - 8, yOf(cursor.row) + height / 2 + 0.5);
    }
    if (drag) {
      const x0 = xOf(Math.min(drag.from, drag.to), range, gutter, width);
      const x1 = xOf(Math.max(drag.from, drag.to) + 1, range, gutter, width);
      context.fillStyle = ink.text;
      context.globalAlpha = 0.2;
      context.fillRect(x0, TOP, x1 - x0, total);
      context.globalAlpha = 1;
    }
  }

  /**
   * Names where there is room for each, else the blocks they belong to.
   * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {Layout} place @param {(row: number) => number} yOf
   */
  function labels(context, ink, { gutter, height, each }, yOf) {
    const { layers } = /** @type {HeatData} */ (data).grid.meta;
    const room = Math.floor((gutter - 12) / 6.7);
    context.textAlign = "right";
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.line;
    const { blocks } = namesOf(layers);
    let lastY = -Infinity;
    let lastBlock = "";
    layers.forEach((layer, row) => {
      const single = height >= 11 && each === 1;
      const block = single ? layer.name : (blocks[row] ?? "");
      const y = yOf(row);
      if (block === lastBlock) return;
      lastBlock = block;
      if (!single) line(context, gutter - 5, y + 0.5, gutter - 1, y + 0.5);
      if (y - lastY < 12) return;
      lastY = y;
      context.fillText(tail(shortBlock(block, room), room), gutter - 8, y + (single ? height / 2 + 0.5 : 5.5));
    });
  }

  const detach = attachInput(element, {
    data: () => data,
    cellAt,
    twoFingers: touch.fingers,
    inPlot: (x) => x >= gutterFor(/** @type {HeatData} */ (data).width) && x <= element.clientWidth - RIGHT,
    setDrag(next) {
      drag = next;
      draw();
    },
  });

  return {
    update(next) {
      data = next;
      draw();
    },
    destroy() {
      stopResize();
      touch.stop();
      detach();
    },
  };
}
