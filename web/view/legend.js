/** The colour scale: the format's limit is a line in it, and what is beyond the limit is hatched here as it is there. */

import { css, palettes } from "../data/colour.js";
import { columnOf, valueAt } from "../data/grid.js";
import { formats } from "../data/formats.js";
import { clearOf } from "../data/labels.js";
import { colour, legendTicks } from "../data/scale.js";
import { bits, figure, percent, powerOfTwo, superscript } from "../data/text.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";
import { h } from "./dom.js";

/** @typedef {import("../data/scale.js").Scale} Scale */
/** @typedef {{ scale: Scale, theme: import("../data/colour.js").Theme, limit: string, value: number | undefined, words: { nonfinite: string, missing: string } }} LegendData */

const HEIGHT = 50;

/** Upper edge and height of the bar. */
const BAR = 18;
const THICK = 13;

/** @param {import("../state.js").State} state @param {Scale} scale @param {import("../data/words.js").Translate} t */
export function legend(state, scale, t) {
  const { cursor, route } = state;
  const grid = state.heat.data;
  const chosen = formats.get(route.format);
  const limit = scale.kind === "ratio" ? t("legend.band") : scale.kind !== "bits" ? "" : chosen ? t("legend.limit_of", { format: chosen.name, max: figure(chosen.max) }) : t("legend.limit");
  return h("div", {
    class: "legend",
    role: "img",
    "aria-label": t("legend.label", { metric: t(`metric.${route.metric}`) }),
    island: {
      create,
      data: {
        scale,
        theme: state.theme,
        limit,
        value: cursor && grid ? valueAt(grid, cursor.row, columnOf(grid, cursor.step)) : undefined,
        words: { nonfinite: t("legend.nonfinite"), missing: t("legend.missing") },
      },
    },
  });
}

/** Along the scale, 0 to 1 from left to right, the emphatic end on the right. @param {Scale} scale @param {number} value */
function along(scale, value) {
  if (scale.kind === "bits") return (scale.low - Math.min(scale.low, Math.max(-scale.beyond, value))) / (scale.low + scale.beyond);
  if (scale.kind === "signed") return Math.min(1, Math.max(0, (value + scale.high) / (2 * scale.high)));
  if (scale.kind === "ratio") return Math.min(1, Math.max(0, (Math.log10(value) - scale.low + scale.beyond) / (scale.high - scale.low + 2 * scale.beyond)));
  const x = scale.kind === "count" ? value : Math.log2(value);
  return Math.min(1, Math.max(0, (x - scale.low) / (scale.high - scale.low)));
}

/** The value at a place along the scale. @param {Scale} scale @param {number} share */
function valueThere(scale, share) {
  if (scale.kind === "bits") return scale.low - share * (scale.low + scale.beyond);
  if (scale.kind === "signed") return (2 * share - 1) * scale.high;
  if (scale.kind === "ratio") return 10 ** (scale.low - scale.beyond + share * (scale.high - scale.low + 2 * scale.beyond));
  const x = scale.low + share * (scale.high - scale.low);
  return scale.kind === "count" ? x : 2 ** x;
}

/** @param {Scale} scale @param {number} value */
function tickText(scale, value) {
  if (scale.kind === "bits") return value === scale.low ? `${bits(value).replace(".0", "")}+` : bits(value).replace(".0", "");
  if (scale.kind === "ratio") return `10${superscript(Math.round(Math.log10(value)))}`;
  if (scale.kind === "share") return percent(value).replace(".00", "").replace(".0", "");
  if (scale.kind === "signed") return value < 0 ? `\u2212${powerOfTwo(-value)}` : powerOfTwo(value);
  return scale.kind === "log2" ? `${powerOfTwo(value)}${Math.log2(value) === scale.high ? "+" : ""}` : figure(value);
}

/** @param {Scale} scale @param {number} tick */
function importance(scale, tick) {
  if (scale.kind === "ratio") return [scale.low, scale.high].includes(Math.log10(tick)) ? 2 : 0;
  return scale.kind !== "bits" ? 0 : tick === 0 ? 2 : tick === scale.low ? 1 : 0;
}

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
function create(element) {
  const canvas = addCanvas(element);
  /** @type {LegendData | null} */
  let data = null;
  /** @type {unknown[]} */
  let drawn = [];
  const stop = onResize(element, draw);

  function draw() {
    if (!data) return;
    const { scale, theme, limit, value, words } = data;
    const width = element.clientWidth;
    if (width === 0) return; // not in the document yet
    // The page is drawn anew every second, and twice for a zoom.
    const inputs = [scale, theme, limit, value, words.nonfinite, words.missing, width, devicePixelRatio];
    if (inputs.every((input, i) => Object.is(input, drawn[i]))) return;
    drawn = inputs;
    const ink = inkOf(theme);
    const palette = palettes[theme];
    const context = prepare(canvas, width, HEIGHT);
    const side = 92; // for the two swatches
    const bar = Math.max(80, width - side - 18);
    const x = (/** @type {number} */ at) => 6 + along(scale, at) * bar;
    for (let i = 0; i < bar; i++) {
      context.fillStyle = css(scale.kind === "count" && i > bar / 2 ? palette.mark : colour(scale, palette, valueThere(scale, (i + 0.5) / bar)));
      context.fillRect(6 + i, BAR, 1, THICK);
    }
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.muted;
    context.textAlign = "center";
    const ticks = legendTicks(scale).map((tick) => {
      const text = tickText(scale, tick);
      const { width } = context.measureText(text);
      return { tick, text, width, at: Math.min(bar + 12 - width / 2, Math.max(width / 2, x(tick))) };
    });
    // The limit is read first, then the calm end.
    ticks.sort((a, b) => importance(scale, b.tick) - importance(scale, a.tick));
    clearOf(ticks, 5).forEach((clear, i) => {
      const { tick, text, at } = /** @type {typeof ticks[number]} */ (ticks[i]);
      line(context, Math.round(x(tick)) + 0.5, BAR + THICK, Math.round(x(tick)) + 0.5, BAR + THICK + 3);
      if (clear) context.fillText(text, at, BAR + 24);
    });
    const edges = scale.kind === "bits" ? [0] : scale.kind === "ratio" ? [10 ** scale.high, 10 ** scale.low] : [];
    edges.forEach((edge, i) => {
      const at = Math.round(x(edge)) + 0.5;
      // What is above the first is hatched as its cells are, what is below a second the other way.
      const [from, to, lean] = i === 0 ? [at, bar + 6, THICK] : [6, at, -THICK];
      context.save();
      context.beginPath();
      context.rect(from, BAR, to - from, THICK);
      context.clip();
      context.strokeStyle = css(palette.hatch);
      context.lineWidth = 1.4;
      for (let start = from - 14; start < to + 20; start += 5) line(context, start, BAR + THICK, start + lean, BAR);
      context.restore();
      context.strokeStyle = ink.text;
      context.lineWidth = 2;
      line(context, at, BAR - 4, at, BAR + THICK + 3);
      context.lineWidth = 1;
    });
    if (limit !== "") {
      context.fillStyle = ink.text;
      context.textAlign = "right";
      context.fillText(limit, Math.min(bar + 6, x(edges[0] ?? 0) + 34), 8);
    }
    if (value !== undefined) {
      const at = x(Number.isNaN(value) ? Infinity : value);
      context.fillStyle = ink.text;
      context.beginPath();
      context.moveTo(at - 4, BAR - 5);
      context.lineTo(at + 4, BAR - 5);
      context.lineTo(at, BAR + 1);
      context.fill();
    }
    swatches(context, ink, palette, bar + 20, words);
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
 * @param {CanvasRenderingContext2D} context @param {import("./canvas.js").Ink} ink @param {import("../data/colour.js").Palette} palette
 * @param {number} x @param {LegendData["words"]} words
 */
function swatches(context, ink, palette, x, words) {
  context.fillStyle = css(palette.mark);
  context.fillRect(x, 6, 11, 11);
  context.strokeStyle = css(palette.cross);
  context.lineWidth = 1.6;
  line(context, x + 2.5, 8.5, x + 8.5, 14.5);
  line(context, x + 8.5, 8.5, x + 2.5, 14.5);
  context.lineWidth = 1;
  context.fillStyle = css(palette.missing);
  context.strokeStyle = ink.muted;
  context.fillRect(x, 25, 11, 11);
  context.strokeRect(x + 0.5, 25.5, 10, 10);
  context.fillStyle = ink.muted;
  context.textAlign = "left";
  context.fillText(words.nonfinite, x + 16, 12);
  context.fillText(words.missing, x + 16, 31);
}
