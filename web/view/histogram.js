/** Exponents of a layer over steps, with the range of its format, at the scale it really had, laid over them. */

import { css, palettes } from "../data/colour.js";
import { formats, band } from "../data/formats.js";
import { columnOf, valueAt } from "../data/grid.js";
import { binOf, columnEnds, edgeLog2, occupied, poolColumns, shares } from "../data/histogram.js";
import { spread } from "../data/labels.js";
import { count, superscript } from "../data/text.js";
import { stepTicks } from "../data/ticks.js";
import { attachBrush } from "./brush.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";

/**
 * @typedef {object} HistogramData
 * @property {import("../state.js").LayerData} layer
 * @property {import("../data/formats.js").Format | null} format
 * @property {import("../data/geometry.js").Range} range
 * @property {import("../data/colour.js").Theme} theme
 * @property {number | null} mark
 * @property {(range: { from: number | null, to: number | null }) => void} zoom
 * @property {Record<"limit" | "normal" | "zero" | "axis" | "step" | "scale", string>} words
 */

const HEIGHT = 360;
const LEFT = 46;
const LADDER = 104;
const RUNG = 19;
const BOTTOM = 24;
const TOP = 18;
const SHOWN = ["e4m3fnuz", "e4m3fn", "e5m2", "fp16", "bf16"];

/**
 * log2 of the scale at the cast, by step: what headroom and absmax leave of the format's maximum.
 * @param {HistogramData} data @param {number} step @returns {number | undefined}
 */
function scaleLog2({ layer, format }, step) {
  const headroom = valueAt(layer.headroom, 0, columnOf(layer.headroom, step));
  const absmax = valueAt(layer.absmax, 0, columnOf(layer.absmax, step));
  if (!format || headroom === undefined || absmax === undefined || !Number.isFinite(headroom) || !(absmax > 0)) return undefined;
  return Math.log2(format.max) - Math.log2(absmax) - headroom;
}

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createHistogram(element) {
  const canvas = addCanvas(element);
  /** @type {HistogramData | null} */
  let data = null;
  const stop = onResize(element, draw);
  const unbrush = attachBrush(element, () => data && { range: data.range, left: LEFT, right: element.clientWidth - LADDER, zoom: data.zoom });

  function draw() {
    if (!data) return;
    const { layer, format, range, theme, mark, words } = data;
    const ink = inkOf(theme);
    const width = element.clientWidth;
    const right = width - LADDER;
    const context = prepare(canvas, width, HEIGHT);
    const columns = poolColumns(layer.histogram.columns, Math.max(1, right - LEFT));
    const ends = columnEnds(columns);
    const seen = occupied(columns) ?? { low: 2 * 127 - 20, high: 2 * 127 };
    /** @type {number | undefined} */
    let scale;
    for (const { first_step } of columns) scale = scaleLog2(data, first_step) ?? scale;
    const bands = format && scale !== undefined ? band(format, 2 ** scale) : null;
    const inView = bands && format && format.exponentBits < 8;
    const low = Math.min(seen.low, inView ? binOf(bands.zero) : Infinity) - 4;
    const high = Math.max(seen.high + 1, inView ? binOf(bands.limit) : -Infinity) + 4;
    const x = (/** @type {number} */ step) => LEFT + ((step - range.from) / (range.to + 1 - range.from)) * (right - LEFT);
    const y = (/** @type {number} */ bin) => TOP + ((high - Math.min(high, Math.max(low, bin))) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const palette = palettes[theme];

    columns.forEach((column, index) => {
      const [x0, x1] = [Math.max(LEFT, x(column.first_step)), Math.min(right, x(ends[index] ?? 0))];
      shares(column, seen.low, seen.high).forEach((share, i) => {
        if (share === 0) return;
        // The square root shows the thin tails, which are what meets a limit first.
        context.fillStyle = css(palette.safe[Math.round(30 + 225 * Math.min(1, Math.sqrt(share * 4)))] ?? 0);
        context.fillRect(x0, y(seen.low + i + 1), Math.max(1, x1 - x0 + 0.3), y(seen.low + i) - y(seen.low + i + 1) + 0.3);
      });
    });
    axes(context, ink, { x, y, low, high, right, range, words });
    if (format) {
      overlay(context, ink, data, { x, y, low, high, right });
      ladder(context, ink, scale ?? 0, { y, low, high, right }, format.name, scale === undefined ? "" : `${words.scale} 2${superscript(Math.round(scale))}`);
    }
    if (mark !== null && mark >= range.from && mark <= range.to) {
      context.strokeStyle = ink.text;
      line(context, x(mark + 0.5), TOP, x(mark + 0.5), HEIGHT - BOTTOM);
    }
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

/**
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink
 * @param {{ x: (step: number) => number, y: (bin: number) => number, low: number, high: number, right: number, range: HistogramData["range"], words: HistogramData["words"] }} place
 */
function axes(context, ink, { x, y, low, high, right, range, words }) {
  context.strokeStyle = ink.line;
  context.strokeRect(LEFT - 0.5, TOP - 0.5, right - LEFT + 1, HEIGHT - TOP - BOTTOM + 1);
  context.fillStyle = ink.muted;
  context.strokeStyle = ink.muted;
  context.textAlign = "right";
  const octaves = (high - low) / 2;
  const every = octaves > 48 ? 8 : octaves > 20 ? 4 : 2;
  for (let octave = Math.ceil((low / 2 - 127) / every) * every; binOf(octave) <= high; octave += every) {
    const at = Math.round(y(binOf(octave))) + 0.5;
    line(context, LEFT - 4, at, LEFT, at);
    context.fillText(`2${superscript(octave)}`, LEFT - 7, at);
  }
  context.textAlign = "left";
  context.fillText(words.axis, 0, 7);
  context.textAlign = "center";
  for (const step of stepTicks(range.from, range.to, (right - LEFT) / 90)) {
    line(context, x(step), HEIGHT - BOTTOM, x(step), HEIGHT - BOTTOM + 4);
    context.fillText(count(step), x(step), HEIGHT - BOTTOM + 13);
  }
  context.textAlign = "right";
  context.fillText(words.step, LEFT - 7, HEIGHT - BOTTOM + 13);
}

/**
 * The limit and the floor as they moved with the scale; where one lies out of the picture, an arrow says which way.
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {HistogramData} data
 * @param {{ x: (step: number) => number, y: (bin: number) => number, low: number, high: number, right: number }} place
 */
function overlay(context, ink, data, { x, y, low, high, right }) {
  const format = /** @type {import("../data/formats.js").Format} */ (data.format);
  const { columns } = data.layer.histogram;
  const ends = columnEnds(columns);
  const lines = /** @type {const} */ ([
    ["limit", ink.critical, [], 1.8],
    ["normal", ink.text, [2, 3], 1],
    ["zero", ink.info, [6, 3], 1.4],
  ]);
  /** @type {{ text: string, color: string, at: number }[]} */
  const labels = [];
  for (const [name, color, dash, weight] of lines) {
    context.strokeStyle = color;
    context.lineWidth = weight;
    context.setLineDash([...dash]);
    context.beginPath();
    let pen = false;
    let last = 0;
    let seen = false;
    columns.forEach(({ first_step }, i) => {
      const scale = scaleLog2(data, first_step);
      if (scale === undefined) return;
      last = binOf(band(format, 2 ** scale)[name]);
      seen ||= last > low && last < high;
      if (pen) context.lineTo(x(first_step), y(last));
      else context.moveTo(x(first_step), y(last));
      context.lineTo(Math.min(right, x(ends[i] ?? 0)), y(last));
      pen = true;
    });
    if (seen) context.stroke();
    context.setLineDash([]);
    if (!pen) continue;
    const arrow = last >= high ? "\u2191 " : last <= low ? "\u2193 " : "";
    labels.push({ text: `${arrow}${data.words[name]}${arrow ? ` 2${superscript(Math.round(edgeLog2(Math.round(last))))}` : ""}`, color, at: y(last) + (name === "limit" ? -9 : 9) });
  }
  context.lineWidth = 1;
  context.textAlign = "right";
  spread(labels.map(({ at }) => at), 15, TOP + 9, HEIGHT - BOTTOM - 9).forEach((at, i) => {
    const { text, color } = /** @type {typeof labels[number]} */ (labels[i]);
    const width = context.measureText(text).width + 8;
    context.fillStyle = ink.bg;
    context.fillRect(right - width - 1, at - 7, width, 14);
    context.fillStyle = color;
    context.fillText(text, right - 5, at);
  });
}

/**
 * Where other formats would lie at the newest scale.
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {number} scale log2
 * @param {{ y: (bin: number) => number, low: number, high: number, right: number }} place @param {string} current @param {string} title
 */
function ladder(context, ink, scale, { y, low, high, right }, current, title) {
  context.fillStyle = ink.muted;
  context.textAlign = "right";
  context.fillText(title, right + LADDER, 7);
  const names = SHOWN.includes(current) ? SHOWN : [current, ...SHOWN.slice(0, 4)];
  names.forEach((name, i) => {
    const format = formats.get(name);
    if (!format) return;
    const { limit, subnormal, normal } = band(format, 2 ** scale);
    const x = right + 10 + i * RUNG;
    const color = name === current ? ink.text : ink.muted;
    // Upright, an arrow to the right points up.
    const text = binOf(subnormal) >= high ? `${name} \u2192` : binOf(limit) <= low ? `\u2190 ${name}` : name;
    const half = context.measureText(text).width / 2;
    const [middle = 0] = spread([(y(binOf(limit)) + y(binOf(normal))) / 2], 0, TOP + half, HEIGHT - BOTTOM - half);
    context.strokeStyle = color;
    context.lineWidth = name === current ? 2 : 1;
    line(context, x, y(binOf(limit)), x, y(binOf(normal)));
    context.setLineDash([2, 2]);
    line(context, x, y(binOf(normal)), x, y(binOf(subnormal)));
    context.setLineDash([]);
    // A bar without its cap goes on beyond the picture.
    if (binOf(limit) > low && binOf(limit) < high) line(context, x - 3, y(binOf(limit)), x + 3, y(binOf(limit)));
    context.save();
    context.translate(x + 9.5, middle);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillStyle = color;
    context.fillText(text, 0, 0);
    context.restore();
  });
  context.lineWidth = 1;
}
