/** One step axis for the whole page: every trace shares its left gutter, its right edge and its range. */

/** @typedef {{ from: number, to: number }} Range first and last step, both included */

export const RIGHT = 16;

/** Widest the phone layout goes. */
export const PHONE = 720;

/** @param {number} viewport width in CSS pixels @returns {number} width of the gutter with names and y axes */
export function gutterFor(viewport) {
  if (viewport < PHONE) return 56;
  return viewport < 1200 ? 172 : 212;
}

/**
 * Where the axis of a growing run ends: a little ahead, so that it stays put for a while and all traces agree on it.
 * @param {number} from @param {number} last newest step @returns {number} at most a sixteenth of the span beyond `last`
 */
export function followEnd(from, last) {
  const room = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(1, last - from)) - 4));
  return from + Math.ceil((last + 1 - from) / room) * room - 1;
}

/**
 * A step takes the width of one cell: its left edge is here, its right edge at `xOf(step + 1)`.
 * @param {number} step @param {Range} range @param {number} gutter @param {number} width of the whole trace
 */
export function xOf(step, range, gutter, width) {
  return gutter + ((step - range.from) / (range.to + 1 - range.from)) * (width - gutter - RIGHT);
}

/** @param {number} x @param {Range} range @param {number} gutter @param {number} width @returns {number} a step inside the range */
export function stepAt(x, range, gutter, width) {
  const share = (x - gutter) / (width - gutter - RIGHT);
  return Math.min(range.to, Math.max(range.from, Math.floor(range.from + share * (range.to + 1 - range.from))));
}

/** Two fingers nearer to each other than this only move the view. */
const PINCH_PX = 24;

/**
 * The range that keeps under two fingers what was under them when they came down; it is moved, and widened or narrowed.
 * @param {readonly [number, number]} before places of the fingers, pixels from the left @param {readonly [number, number]} now
 * @param {Range} range as it was @param {number} gutter @param {number} width of the whole trace @param {number} last newest step
 * @returns {Range} at least 8 steps, none before 0 and none after `last` if the span allows
 */
export function pinched(before, now, range, gutter, width, last) {
  const plot = width - gutter - RIGHT;
  const span = range.to + 1 - range.from;
  const [apart, together] = [Math.abs(before[1] - before[0]), Math.abs(now[1] - now[0])];
  const grown = apart < PINCH_PX || together < PINCH_PX ? 1 : together / apart;
  const steps = Math.min(Math.max(last, range.to) + 1, Math.max(8, Math.round(span / grown)));
  const held = range.from + (((before[0] + before[1]) / 2 - gutter) / plot) * span;
  const from = Math.round(held - (((now[0] + now[1]) / 2 - gutter) / plot) * steps);
  const first = Math.max(0, Math.min(from, Math.max(last, range.to) + 1 - steps));
  return { from: first, to: first + steps - 1 };
}

/**
 * Rows of the heat map on the screen: pooled to at most `target` lines, each a whole number of pixels high.
 * @param {number} rows @param {number} target height in pixels
 * @returns {{ lines: number, each: number, height: number }} rows merged into a line, height of a line
 */
export function linesFor(rows, target) {
  const each = Math.max(1, Math.ceil(rows / target));
  const lines = Math.max(1, Math.ceil(rows / each));
  return { lines, each, height: Math.min(16, Math.max(1, Math.floor(target / lines))) };
}

/** What of a block's name fits where there is room for few characters. @param {string} block @param {number} room */
export function shortBlock(block, room) {
  if (block.length <= room || room >= 10) return block;
  const last = block.slice(block.lastIndexOf(".") + 1);
  return /^\d+$/.test(last) ? `.${last}` : last;
}

/** The block a layer belongs to: its name up to the first number. @param {string} name */
export function blockOf(name) {
  const parts = name.split(".");
  const number = parts.findIndex((part) => /^\d+$/.test(part));
  return number < 0 ? name : parts.slice(0, number + 1).join(".");
}
