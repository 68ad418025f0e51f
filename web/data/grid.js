/**
 * The layer x step grid behind the heat map. A column holds the worst value of `cell` consecutive steps (a power of
 * two, aligned), so live columns merge into it exactly and a coarser grid follows from a finer one without asking.
 */

import { MISSING_BITS, bitsOf } from "./fsb1.js";
import { COLUMN_LIMIT } from "./paths.js";

/** @typedef {{ index: number, name: string, format: string | null, order: number }} HeatLayer */
/**
 * @typedef {object} HeatMeta
 * @property {string} kind
 * @property {string} metric
 * @property {string} format
 * @property {string} unit
 * @property {"min" | "max"} worst
 * @property {number} cell
 * @property {number[]} columns first step of each column
 * @property {HeatLayer[]} layers
 * @property {number | null} last_step
 * @property {[number, number]} [band] between which nothing is wrong, of a ratio
 */
/**
 * @typedef {object} Grid
 * @property {HeatMeta} meta
 * @property {number} cell steps a column
 * @property {number} first first step of column 0, a multiple of `cell`
 * @property {number} columns columns in use
 * @property {number} stride values allotted to a row
 * @property {number} last last step seen, -1 when none
 * @property {Float32Array} values [layers, stride]
 * @property {Uint32Array} bits the same bytes
 * @property {Map<number, number>} rows run layer index -> row
 */

export { COLUMN_LIMIT };

/**
 * @param {HeatMeta} meta @param {Float32Array} values [layers, columns] @returns {Grid}
 */
export function gridFrom(meta, values) {
  const { cell, layers } = meta;
  const first = Math.floor((meta.columns[0] ?? 0) / cell) * cell;
  const end = meta.columns.at(-1);
  const columns = end === undefined ? 0 : Math.floor((end - first) / cell) + 1;
  const grid = allot({ meta, cell, first, columns, last: meta.last_step ?? -1, rows: new Map() }, Math.max(COLUMN_LIMIT, columns) + 8);
  layers.forEach((layer, row) => grid.rows.set(layer.index, row));
  const bits = bitsOf(values);
  const sent = meta.columns.length;
  if (sent === columns) for (let row = 0; row < layers.length; row++) grid.bits.set(bits.subarray(row * sent, (row + 1) * sent), row * grid.stride);
  else {
    meta.columns.forEach((step, column) => {
      const target = (step - first) / cell;
      for (let row = 0; row < layers.length; row++) grid.bits[row * grid.stride + target] = bits[row * sent + column] ?? MISSING_BITS;
    });
  }
  return grid;
}

/**
 * @param {Omit<Grid, "stride" | "values" | "bits">} shape @param {number} stride @returns {Grid}
 */
function allot(shape, stride) {
  const values = new Float32Array(shape.meta.layers.length * stride);
  const bits = bitsOf(values).fill(MISSING_BITS);
  return { ...shape, stride, values, bits };
}

/**
 * The bits of the worse of two values. A missing value never wins, an observed NaN always does.
 * @param {number} a @param {number} b @param {boolean} least
 */
export function worstBits(a, b, least) {
  if (a === MISSING_BITS) return b;
  if (b === MISSING_BITS) return a;
  const x = toFloat(a);
  const y = toFloat(b);
  if (Number.isNaN(x)) return a;
  if (Number.isNaN(y)) return b;
  return (least ? y < x : y > x) ? b : a;
}

/**
 * As `worstBits`, of a row of cells into another: what every pixel of a run with thousands of layers passes through.
 * @param {{ values: Float32Array, bits: Uint32Array }} into @param {number} at @param {Pick<Grid, "values" | "bits">} from @param {number} start
 * @param {number} columns @param {boolean} least
 */
export function mergeRow(into, at, from, start, columns, least) {
  const { values, bits } = into;
  for (let column = 0; column < columns; column++) {
    const here = at + column;
    const there = start + column;
    const x = /** @type {number} */ (from.values[there]);
    if (x !== x) {
      if (from.bits[there] !== MISSING_BITS) bits[here] = /** @type {number} */ (from.bits[there]);
      continue;
    }
    const held = /** @type {number} */ (values[here]);
    if (held !== held ? bits[here] === MISSING_BITS : least ? x < held : x > held) values[here] = x;
  }
}

const scratch = new Uint32Array(1);
const scratchFloat = new Float32Array(scratch.buffer);

/** @param {number} bits */
function toFloat(bits) {
  scratch[0] = bits;
  return /** @type {number} */ (scratchFloat[0]);
}

/**
 * Merge live columns in place, pooling when the grid has grown too wide.
 * @param {Grid} grid @param {number} firstStep @param {readonly number[]} layers run layer indices
 * @param {Float32Array} values [steps, layers]
 * @returns {boolean} false when a layer is unknown: the table has changed, ask the server again
 */
export function mergeColumns(grid, firstStep, layers, values) {
  const bits = bitsOf(values);
  const steps = layers.length === 0 ? 0 : bits.length / layers.length;
  const least = grid.meta.worst === "min";
  let known = true;
  if (grid.columns === 0) grid.first = Math.floor(firstStep / grid.cell) * grid.cell;
  for (let i = 0; i < steps; i++) {
    const step = firstStep + i;
    if (step < grid.first) continue;
    while ((step - grid.first) / grid.cell >= COLUMN_LIMIT) coarsen(grid);
    const column = Math.floor((step - grid.first) / grid.cell);
    grid.columns = Math.max(grid.columns, column + 1);
    grid.last = Math.max(grid.last, step);
    for (let j = 0; j < layers.length; j++) {
      const row = grid.rows.get(/** @type {number} */ (layers[j]));
      if (row === undefined) {
        known = false;
        continue;
      }
      const at = row * grid.stride + column;
      grid.bits[at] = worstBits(grid.bits[at] ?? MISSING_BITS, bits[i * layers.length + j] ?? MISSING_BITS, least);
    }
  }
  return known;
}

/** Pool by two, in place, keeping columns aligned to multiples of the new cell. @param {Grid} grid */
export function coarsen(grid) {
  const cell = grid.cell * 2;
  const first = Math.floor(grid.first / cell) * cell;
  const shift = (grid.first - first) / grid.cell;
  const columns = Math.ceil((grid.columns + shift) / 2);
  const least = grid.meta.worst === "min";
  const pooled = new Uint32Array(columns);
  for (let row = 0; row < grid.meta.layers.length; row++) {
    const start = row * grid.stride;
    pooled.fill(MISSING_BITS);
    for (let column = 0; column < grid.columns; column++) {
      const target = (column + shift) >> 1;
      pooled[target] = worstBits(pooled[target] ?? MISSING_BITS, grid.bits[start + column] ?? MISSING_BITS, least);
    }
    grid.bits.fill(MISSING_BITS, start, start + grid.stride);
    grid.bits.set(pooled, start);
  }
  grid.cell = cell;
  grid.first = first;
  grid.columns = columns;
}

/** @param {Grid} grid @param {number} row @param {number} column @returns {number | undefined} undefined when missing */
export function valueAt(grid, row, column) {
  if (row < 0 || row >= grid.meta.layers.length || column < 0 || column >= grid.columns) return undefined;
  const at = row * grid.stride + column;
  return grid.bits[at] === MISSING_BITS ? undefined : grid.values[at];
}

/** @param {Grid} grid @param {number} step */
export function columnOf(grid, step) {
  return Math.floor((step - grid.first) / grid.cell);
}

/**
 * The row with the worst value of a column among rows [from, to).
 * @param {Grid} grid @param {number} column @param {number} from @param {number} to
 * @returns {number} `from` when nothing was observed
 */
export function worstRow(grid, column, from, to) {
  const least = grid.meta.worst === "min";
  let best = from;
  let held = MISSING_BITS;
  for (let row = from; row < to; row++) {
    const merged = worstBits(held, grid.bits[row * grid.stride + column] ?? MISSING_BITS, least);
    if (merged !== held) {
      held = merged;
      best = row;
    }
  }
  return best;
}

/**
 * Rows pooled to at most `limit` lines, so that no layer vanishes between two pixels.
 * @param {Grid} grid @param {number} limit
 * @returns {{ bits: Uint32Array, lines: number, each: number, columns: number }}
 */
export function poolRows(grid, limit) {
  const rows = grid.meta.layers.length;
  const each = Math.max(1, Math.ceil(rows / limit));
  const lines = Math.ceil(rows / each);
  const least = grid.meta.worst === "min";
  const values = new Float32Array(lines * grid.columns);
  const bits = bitsOf(values);
  for (let row = 0; row < rows; row++) {
    const [from, to] = [row * grid.stride, Math.floor(row / each) * grid.columns];
    if (row % each === 0) bits.set(grid.bits.subarray(from, from + grid.columns), to);
    else mergeRow({ values, bits }, to, grid, from, grid.columns, least);
  }
  return { bits, lines, each, columns: grid.columns };
}
