/** Which layers the heat map shows, in which order, and which of them share a line. */

import { MISSING_BITS, bitsOf } from "./fsb1.js";
import { blockOf } from "./geometry.js";
import { mergeRow } from "./grid.js";

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
  return (name) => globbed(wanted, name.toLowerCase());
}

/**
 * Whether a pattern with * and ? is the whole name. Not a regular expression: those try every way to share a name out
 * among several *, which took minutes for a dozen of them. Here only the last * ever takes more.
 * @param {string} pattern @param {string} name
 */
function globbed(pattern, name) {
  let [p, n, star, taken] = [0, 0, -1, 0];
  while (n < name.length) {
    if (pattern[p] === "*") [star, taken] = [p++, n];
    else if (pattern[p] === "?" || pattern[p] === name[n]) [p, n] = [p + 1, n + 1];
    else if (star >= 0) [p, n] = [star + 1, ++taken];
    else return false;
  }
  while (pattern[p] === "*") p++;
  return p === pattern.length;
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
  /** @type {{ line: Line, rows: number[], badness: number }[]} */
  const drawn = [];
  const badness = (/** @type {number[]} */ held) => (wanted.sort === "worst" ? badnessOf(grid, held) : 0);
  const blocks = [...byGroup].map(([group, held]) => {
    if (wanted.group === "" || held.length === 1 || wanted.open.includes(group)) return order(held.map(({ layer, row }) => ({ line: { ...layer, group, members: 1 }, rows: [row], badness: badness([row]) })), wanted.sort);
    const all = held.map(({ row }) => row);
    const formats = new Set(held.map(({ layer }) => layer.format));
    const [first] = held;
    const line = { index: -1, name: group, format: formats.size === 1 ? (first?.layer.format ?? null) : null, order: first?.layer.order ?? 0, group, members: held.length };
    return [{ line, rows: all, badness: badness(all) }];
  });
  // Groups stand where their first line belongs.
  const heads = order(blocks.map((block) => /** @type {typeof drawn[number]} */ (block[0])), wanted.sort);
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
 * @template {{ line: Line, badness: number }} T
 * @param {T[]} lines in order of execution @param {string} sort @returns {T[]}
 */
function order(lines, sort) {
  if (sort === "name") return lines.toSorted((a, b) => (a.line.name < b.line.name ? -1 : a.line.name > b.line.name ? 1 : 0));
  if (sort !== "worst") return lines;
  return lines.toSorted((a, b) => (a.badness === b.badness ? 0 : a.badness < b.badness ? -1 : 1));
}

/**
 * What the worst cell of some rows is sorted by: the least comes first. Every cell of a run with thousands of layers
 * passes through here, so nothing is made in it.
 * @param {Grid} grid @param {readonly number[]} rows @returns {number} -Infinity: not finite; Infinity: nothing was seen
 */
function badnessOf(grid, rows) {
  const { values, bits, stride, columns } = grid;
  const least = grid.meta.worst === "min";
  let best = least ? Infinity : -Infinity;
  for (const row of rows) {
    const end = row * stride + columns;
    for (let at = row * stride; at < end; at++) {
      const value = /** @type {number} */ (values[at]);
      if (least ? value < best : value > best) best = value;
      else if (value !== value && bits[at] !== MISSING_BITS) return -Infinity;
    }
  }
  return least ? best : -best;
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
    rows.forEach((row, nth) => {
      const from = row * grid.stride;
      if (nth === 0) bits.set(grid.bits.subarray(from, from + grid.columns), to);
      else mergeRow({ values, bits }, to, grid, from, grid.columns, least);
    });
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
