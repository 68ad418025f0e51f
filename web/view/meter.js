/** Every layer's headroom at the newest step on one scale, as on the meter of a mixing desk: the limit is the red end. */

import { valueAt } from "../data/grid.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";
import { h } from "./dom.js";

const HEIGHT = 74;
const HIGH = 24;
const LOW = -4;

/** Columns without any value that are passed over. */
const LOOK_BACK = 64;

/** @typedef {{ values: readonly number[], worst: number | undefined, peak: number | undefined, theme: string, limit: string, label: string, peakLabel: string, lostLabel: string }} MeterData */

/** @type {readonly number[]} */
const NOTHING = [];

/** What a grid says, looked for once a revision. @type {{ grid: import("../data/grid.js").Grid | null, rev: number, values: readonly number[], peak: number }} */
let held = { grid: null, rev: -1, values: NOTHING, peak: Infinity };

/** The newest value of each layer, and the least of all. @param {import("../data/grid.js").Grid} grid @param {number} rev */
function readingOf(grid, rev) {
  if (held.grid === grid && held.rev === rev) return held;
  /** @type {number[]} */
  const values = [];
  let peak = Infinity;
  // Some kinds are only looked at every few steps: the newest step at which any layer was.
  for (let column = grid.columns - 1; values.length === 0 && column >= Math.max(0, grid.columns - LOOK_BACK); column--) {
    for (let row = 0; row < grid.meta.layers.length; row++) {
      const value = valueAt(grid, row, column);
      if (value !== undefined) values.push(value);
    }
  }
  // By number: an iterator takes several times as long over the cells of a thousand layers.
  for (let row = 0; row < grid.meta.layers.length; row++) {
    for (let at = row * grid.stride, end = at + grid.columns; at < end; at++) {
      const value = /** @type {number} */ (grid.values[at]);
      if (value < peak) peak = value;
    }
  }
  return (held = { grid, rev, values, peak });
}

/** @param {import("../state.js").State} state @param {number | undefined} worst @param {import("../data/words.js").Translate} t */
export function meter(state, worst, t) {
  const grid = state.heat.data?.meta.metric === "headroom" ? state.heat.data : null;
  const { values, peak } = grid ? readingOf(grid, state.heatRev) : { values: state.newest.data ?? NOTHING, peak: Infinity };
  const lost = values.filter(isLost).length;
  const lostLabel = `NaN, Inf: ${lost}`;
  return h("div", {
    class: "meter",
    role: "img",
    "aria-label": t("meter.label", { layers: String(values.length) }) + (lost > 0 ? `; ${lostLabel}` : ""),
    island: { create, data: { values, worst, peak: peak === Infinity ? undefined : peak, theme: state.theme, limit: t("meter.limit"), label: t("meter.all"), peakLabel: t("meter.peak"), lostLabel } },
  });
}

/** Nothing finite is left of the tensor. @param {number} headroom */
const isLost = (headroom) => Number.isNaN(headroom) || headroom === -Infinity;

/** @param {readonly number[]} places @returns {Map<number, number>} how often each occurs */
function tally(places) {
  const found = new Map();
  for (const place of places) found.set(place, (found.get(place) ?? 0) + 1);
  return found;
}

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
function create(element) {
  const canvas = addCanvas(element);
  /** @type {MeterData | null} */
  let data = null;
  /** @type {unknown[]} */
  let drawn = [];
  const stop = onResize(element, draw);

  function draw() {
    if (!data) return;
    const { values, worst, peak, theme } = data;
    const width = element.clientWidth;
    if (width === 0) return; // not in the document yet
    // The page is drawn anew with every move of the pointer and every second.
    const inputs = [values, worst, peak, theme, data.label, data.lostLabel, width, devicePixelRatio];
    if (inputs.every((input, i) => Object.is(input, drawn[i]))) return;
    drawn = inputs;
    const ink = inkOf(theme);
    const context = prepare(canvas, width, HEIGHT);
    const x = (/** @type {number} */ bits) => 10 + ((HIGH - Math.min(HIGH, Math.max(LOW, bits))) / (HIGH - LOW)) * (width - 24);
    const limit = Math.round(x(0)) + 0.5;
    context.fillStyle = ink.panel;
    context.fillRect(10, 22, width - 24, 26);
    context.save();
    context.beginPath();
    context.rect(limit, 22, x(LOW) - limit, 26);
    context.clip();
    context.strokeStyle = ink.critical;
    context.globalAlpha = 0.55;
    for (let at = limit - 26; at < x(LOW) + 26; at += 6) line(context, at, 48, at + 26, 22);
    context.restore();
    const dense = width > 420;
    for (let bits = HIGH; bits >= LOW; bits--) {
      const at = Math.round(x(bits)) + 0.5;
      const major = bits % 4 === 0;
      context.strokeStyle = major ? ink.muted : ink.line;
      line(context, at, 48, at, major ? 55 : 51);
      if (major && (dense || bits % 8 === 0)) {
        context.fillStyle = bits <= 0 ? ink.critical : ink.muted;
        context.textAlign = "center";
        context.fillText(bits < 0 ? `\u2212${-bits}` : bits === HIGH ? `${bits}+` : String(bits), at, 64);
      }
    }
    context.fillStyle = ink.trace;
    // As opaque as that many strokes one over the other, of which a thousand would take longer than the heat map.
    const clear = 1 - Math.max(0.25, Math.min(0.9, 24 / Math.max(1, values.length)));
    for (const [at, layers] of tally(values.filter((value) => !isLost(value)).map((value) => Math.round(x(value))))) {
      context.globalAlpha = 1 - clear ** layers;
      context.fillRect(at, 27, 1, 17);
    }
    context.globalAlpha = 1;
    context.strokeStyle = ink.critical;
    const lost = values.filter(isLost).length;
    if (lost > 0) crosses(context, ink, lost, data.lostLabel, limit, x(LOW));
    line(context, limit, 16, limit, 56);
    context.fillStyle = ink.critical;
    context.textAlign = "right";
    context.fillText(data.limit, limit - 5, 9);
    context.fillStyle = ink.muted;
    context.textAlign = "left";
    if (values.length > 0) context.fillText(data.label, 10, 9);
    const after = 10 + context.measureText(data.label).width + 18;
    if (peak !== undefined && after + context.measureText(data.peakLabel).width + 12 < limit - 50) {
      context.fillStyle = ink.warning;
      context.fillRect(after, 4, 3, 11);
      context.fillStyle = ink.muted;
      context.fillText(data.peakLabel, after + 8, 9);
    }
    if (peak !== undefined) {
      context.fillStyle = ink.warning;
      context.fillRect(x(peak) - 1.5, 22, 3, 26);
    }
    if (worst !== undefined) {
      const at = x(Number.isNaN(worst) ? -Infinity : worst);
      context.strokeStyle = context.fillStyle = ink.text;
      context.lineWidth = 2;
      line(context, at, 20, at, 50);
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(at - 5, 14);
      context.lineTo(at + 5, 14);
      context.lineTo(at, 21);
      context.fill();
    }
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
 * One cross for each layer without a finite value, as many as there is room for, and how many there are.
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {number} lost @param {string} label
 * @param {number} left @param {number} right
 */
function crosses(context, ink, lost, label, left, right) {
  const columns = Math.max(1, Math.floor((right - left - 10) / 9));
  context.strokeStyle = context.fillStyle = ink.text;
  context.lineWidth = 1.4;
  for (let i = 0; i < Math.min(lost, 2 * columns); i++) {
    const at = right - 10 - (i % columns) * 9;
    const y = i < columns ? 30 : 40;
    line(context, at - 3, y - 3, at + 3, y + 3);
    line(context, at + 3, y - 3, at - 3, y + 3);
  }
  context.lineWidth = 1;
  context.textAlign = "right";
  const room = right - left - 2;
  context.fillText(context.measureText(label).width <= room ? label : `\u00d7${lost}`, right - 4, 9);
  context.strokeStyle = ink.critical;
}
