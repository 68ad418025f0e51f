/** Exponents of a layer over steps, with the range of its format, at the scale it really had, laid over them. */

import { css, palettes } from "../data/colour.js";
import { formats, band } from "../data/formats.js";
import { columnOf, valueAt } from "../data/grid.js";
import { binOf, columnEnds, occupied, poolColumns, shares } from "../data/histogram.js";
import { count, superscript } from "../data/text.js";
import { stepTicks } from "../data/ticks.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";

/**
 * @typedef {object} HistogramData
 * @property {import("../state.js").LayerData} layer
 * @property {import("../data/formats.js").Format | null} format
 * @property {import("../data/geometry.js").Range} range
 * @property {import("../data/colour.js").Theme} theme
 * @property {number | null} mark
 * @property {Record<"limit" | "normal" | "zero" | "axis" | "step" | "scale", string>} words
 */

const HEIGHT = 360;
const LEFT = 46;
const LADDER = 96;
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
      overlay(context, ink, data, x, y, right);
      ladder(context, ink, scale ?? 0, y, right, format.name, scale === undefined ? "" : `${words.scale} 2${superscript(Math.round(scale))}`);
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
    destroy: stop,
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
 * The limit and the floor as they moved with the scale.
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {HistogramData} data
 * @param {(step: number) => number} x @param {(bin: number) => number} y @param {number} right
 */
function overlay(context, ink, data, x, y, right) {
  const format = /** @type {import("../data/formats.js").Format} */ (data.format);
  const { columns } = data.layer.histogram;
  const ends = columnEnds(columns);
  const lines = /** @type {const} */ ([
    ["limit", ink.critical, [], 1.8],
    ["normal", ink.text, [2, 3], 1],
    ["zero", ink.info, [6, 3], 1.4],
  ]);
  for (const [name, color, dash, weight] of lines) {
    context.strokeStyle = color;
    context.lineWidth = weight;
    context.setLineDash([...dash]);
    context.beginPath();
    let pen = false;
    let last = 0;
    columns.forEach(({ first_step }, i) => {
      const scale = scaleLog2(data, first_step);
      if (scale === undefined) return;
      last = y(binOf(band(format, 2 ** scale)[name]));
      if (pen) context.lineTo(x(first_step), last);
      else context.moveTo(x(first_step), last);
      context.lineTo(Math.min(right, x(ends[i] ?? 0)), last);
      pen = true;
    });
    context.stroke();
    context.setLineDash([]);
    if (!pen) continue;
    const text = data.words[name];
    const at = last + (name === "limit" ? -9 : 9);
    const width = context.measureText(text).width + 8;
    context.fillStyle = ink.bg;
    context.fillRect(right - width - 1, at - 7, width, 14);
    context.fillStyle = color;
    context.textAlign = "right";
    context.fillText(text, right - 5, at);
  }
  context.lineWidth = 1;
}

/**
 * Where other formats would lie at the newest scale.
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {number} scale log2
 * @param {(bin: number) => number} y @param {number} right @param {string} current @param {string} title
 */
function ladder(context, ink, scale, y, right, current, title) {
  context.fillStyle = ink.muted;
  context.textAlign = "right";
  context.fillText(title, right + LADDER, 7);
  const names = SHOWN.includes(current) ? SHOWN : [current, ...SHOWN.slice(0, 4)];
  names.forEach((name, i) => {
    const format = formats.get(name);
    if (!format) return;
    const { limit, subnormal, normal } = band(format, 2 ** scale);
    const x = right + 14 + i * 17;
    context.strokeStyle = name === current ? ink.text : ink.muted;
    context.lineWidth = name === current ? 2 : 1;
    line(context, x, y(binOf(limit)), x, y(binOf(normal)));
    context.setLineDash([2, 2]);
    line(context, x, y(binOf(normal)), x, y(binOf(subnormal)));
    context.setLineDash([]);
    line(context, x - 3, y(binOf(limit)), x + 3, y(binOf(limit)));
    context.save();
    context.translate(x + 9, (y(binOf(limit)) + y(binOf(normal))) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillStyle = name === current ? ink.text : ink.muted;
    context.fillText(name, 0, 0);
    context.restore();
  });
  context.lineWidth = 1;
}
