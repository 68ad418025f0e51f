/** Which layers the heat map shows, in which order, and which of them share a line. */

import { MISSING_BITS, bitsOf } from "./fsb1.js";
import { blockOf } from "./geometry.js";
import { mergeRow, worstBits } from "./grid.js";

/** @typedef {import("./grid.js").Grid} Grid */
/** @typedef {import("./grid.js").HeatLayer} HeatLayer */
/**
 * @typedef {object} Arrangement
 * @property {string} filter part of a name, or a whole one with * and ?; "" for all
 * @property {string} group one of GROUPS, "" for none
 * @property {string} sort one of SORTS, "" for the order of execution
 * @property {readonly string[]} open groups whose layers are shown one by one
 */
/**
 * A line of the picture: a layer, or a group that is drawn as its worst.
 * @typedef {HeatLayer & { group: string, members: number }} Line members: 1 for a layer
 */

/** What a layer without a module type or format belongs to. */
export const UNKNOWN = "?";

/** @param {string} filter @returns {(name: string) => boolean} */
export function matcher(filter) {
  const wanted = filter.trim().toLowerCase();
  if (!/[*?]/.test(wanted)) return (name) => name.toLowerCase().includes(wanted);
  const pattern = wanted.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  const whole = new RegExp(`^${pattern}$`, "s");
  return (name) => whole.test(name.toLowerCase());
}

/**
 * @param {HeatLayer} layer @param {string} by one of GROUPS @param {ReadonlyMap<string, string>} types module type of each layer
 */
export function groupOf(layer, by, types) {
  if (by === "block") return blockOf(layer.name);
  return (by === "type" ? types.get(layer.name) : layer.format) ?? UNKNOWN;
}

/**
 * The grid as it is to be drawn. Cells of a closed group hold the worst of its layers, so that no extreme is lost.
 * @param {Grid} grid @param {Arrangement} wanted @param {ReadonlyMap<string, string>} types module type of each layer
 * @returns {{ grid: Grid, lines: Line[], lineOf: Map<string, number>, groups: Map<string, number>, matched: number }}
 *   lineOf: layer's name -> line; groups: name -> layers that match, in the order of the lines
 */
export function arrange(grid, wanted, types) {
  const matches = matcher(wanted.filter);
  const rows = grid.meta.layers.map((layer, row) => ({ layer, row })).filter(({ layer }) => matches(layer.name));
  /** @type {Map<string, typeof rows>} */
  const byGroup = new Map();
  for (const one of rows) {
    const group = wanted.group === "" ? "" : groupOf(one.layer, wanted.group, types);
    const held = byGroup.get(group);
    if (held) held.push(one);
    else byGroup.set(group, [one]);
  }
  /** @type {{ line: Line, rows: number[], worst: number }[]} */
  const drawn = [];
  const worst = (/** @type {number[]} */ held) => (wanted.sort === "worst" ? worstOf(grid, held) : MISSING_BITS);
  const sorted = (/** @type {typeof drawn} */ lines) => order(lines, wanted.sort, grid.meta.worst === "min");
  const blocks = [...byGroup].map(([group, held]) => {
    const layers = held.map(({ layer, row }) => ({ line: { ...layer, group, members: 1 }, rows: [row], worst: worst([row]) }));
    if (wanted.group === "" || held.length === 1 || wanted.open.includes(group)) return sorted(layers);
    const all = held.map(({ row }) => row);
    const formats = new Set(held.map(({ layer }) => layer.format));
    const [first] = held;
    const line = { index: -1, name: group, format: formats.size === 1 ? (first?.layer.format ?? null) : null, order: first?.layer.order ?? 0, group, members: held.length };
    return [{ line, rows: all, worst: worst(all) }];
  });
  // Groups stand where their first line belongs.
  const heads = order(blocks.map((block) => /** @type {typeof drawn[number]} */ (block[0])), wanted.sort, grid.meta.worst === "min");
  const blockOfHead = new Map(blocks.map((block) => [block[0], block]));
  for (const head of heads) for (const line of blockOfHead.get(head) ?? []) drawn.push(line);
  const lineOf = new Map();
  drawn.forEach(({ rows: held }, at) => held.forEach((row) => lineOf.set(grid.meta.layers[row]?.name, at)));
  return {
    grid: gathered(grid, drawn),
    lines: drawn.map(({ line }) => line),
    lineOf,
    groups: new Map([...byGroup].filter(([group]) => group !== "").map(([group, held]) => [group, held.length])),
    matched: rows.length,
  };
}

/**
 * @template {{ line: Line, worst: number }} T
 * @param {T[]} lines in order of execution @param {string} sort @param {boolean} least whether less is worse @returns {T[]}
 */
function order(lines, sort, least) {
  if (sort === "name") return lines.toSorted((a, b) => (a.line.name < b.line.name ? -1 : a.line.name > b.line.name ? 1 : 0));
  if (sort !== "worst") return lines;
  const badness = (/** @type {number} */ bits) => {
    if (bits === MISSING_BITS) return Infinity;
    const [value = NaN] = new Float32Array(Uint32Array.of(bits).buffer);
    return Number.isNaN(value) ? -Infinity : least ? value : -value;
  };
  const keyed = lines.map((line) => ({ line, key: badness(line.worst) }));
  return keyed.sort((a, b) => (a.key === b.key ? 0 : a.key < b.key ? -1 : 1)).map(({ line }) => line);
}

/** Bits of the worst value of some rows over all columns. @param {Grid} grid @param {readonly number[]} rows */
function worstOf(grid, rows) {
  const least = grid.meta.worst === "min";
  let held = MISSING_BITS;
  for (const row of rows) {
    const start = row * grid.stride;
    let best = NaN;
    for (let at = start, end = start + grid.columns; at < end; at++) {
      const value = /** @type {number} */ (grid.values[at]);
      if (value !== value) {
        if (grid.bits[at] !== MISSING_BITS) return /** @type {number} */ (grid.bits[at]);
      } else if (best !== best || (least ? value < best : value > best)) best = value;
    }
    if (best === best) held = worstBits(held, bitsOf(Float32Array.of(best))[0] ?? MISSING_BITS, least);
  }
  return held;
}

/** @param {Grid} grid @param {readonly { line: Line, rows: readonly number[] }[]} drawn @returns {Grid} a grid of these lines */
function gathered(grid, drawn) {
  const layers = drawn.map(({ line }) => line);
  // Nothing left out and nothing moved: the cells are those that are there.
  if (drawn.length === grid.meta.layers.length && drawn.every(({ rows }, line) => rows.length === 1 && rows[0] === line)) return { ...grid, meta: { ...grid.meta, layers } };
  const least = grid.meta.worst === "min";
  const values = new Float32Array(drawn.length * grid.stride);
  const bits = bitsOf(values).fill(MISSING_BITS);
  drawn.forEach(({ rows }, line) => {
    const to = line * grid.stride;
    for (const row of rows) {
      const from = row * grid.stride;
      if (rows.length === 1) bits.set(grid.bits.subarray(from, from + grid.columns), to);
      else mergeRow({ values, bits }, to, grid, from, grid.columns, least);
    }
  });
  return { ...grid, meta: { ...grid.meta, layers }, values, bits, rows: new Map() };
}

/** Names in an address: a comma inside one is encoded. @param {string} text @returns {string[]} */
export function namesIn(text) {
  return text === "" ? [] : text.split(",").map(decode);
}

/** @param {readonly string[]} names */
export function namesText(names) {
  return names.map(encodeURIComponent).join(",");
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray "%" typed by hand
  }
}
