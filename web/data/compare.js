/** Several runs over one another: which, drawn how, along what; and how far apart two of them are in each layer. */

import { numbers } from "./json.js";

/** @typedef {import("./series.js").Series} Series */
/** @typedef {import("./json.js").JsonNumber} JsonNumber */
/** @typedef {{ layers: { index: number, name: string }[], columns: number[], cell: number, values: JsonNumber[][] }} HeatAnswer */
/** @typedef {{ name: string, values: Float64Array, largest: number, at: number, mean: number, broken: number }} Row b minus a by column, NaN where either is missing; largest with its sign, at a step; broken: columns in which only one is finite */

export const MOST_RUNS = 8;

/** Told apart by dash as well as by colour; the same for one place in the list everywhere. */
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "2px,2px", "10px,3px,2px,3px"];
export const STROKES = ["", "8 5", "2 4", "8 4 2 4", "14 6", "14 4 2 4", "2 2", "10 3 2 3"];
/** @type {Record<string, readonly string[]>} */
export const COLOURS = {
  dark: ["#86dcc9", "#e9b949", "#86b8ea", "#e58fb4", "#b9d36c", "#c3a6f0", "#f0a079", "#b7c0bf"],
  light: ["#0b6a5d", "#855800", "#1f5f9e", "#a02a63", "#4f6b0c", "#6b3fb0", "#a5461a", "#4d5757"],
};

/** @param {string} list as in the address @returns {string[]} each once, at most MOST_RUNS */
export function namesIn(list) {
  return allNamesIn(list).slice(0, MOST_RUNS);
}

/** @param {string} list as in the address @returns {string[]} each once */
export function allNamesIn(list) {
  const names = list.split(",").filter(Boolean).map((name) => {
    try {
      return decodeURIComponent(name);
    } catch {
      return name; // a stray "%" typed by hand
    }
  });
  return [...new Set(names)];
}

/** @param {readonly string[]} names */
export const listOf = (names) => names.map(encodeURIComponent).join(",");

/** Series that count tokens since the start, by the names that frameworks give them. */
export const TOKENS = ["tokens", "num_input_tokens_seen", "consumed_tokens"];

/**
 * What a step is on another axis: tokens as they were counted, or seconds of training as the sum of the steps' times.
 * @param {ReadonlyMap<string, Series>} series @param {string} axis "" steps | "tokens" | "time"
 * @returns {((step: number) => number) | null} null: not recorded. Between records it is linear, beyond them NaN.
 */
export function along(series, axis) {
  if (axis === "") return (step) => step;
  /** @type {[number, number][]} */
  const known = [];
  if (axis === "tokens") {
    const tokens = TOKENS.map((name) => series.get(name)).find((one) => one?.max.some(Number.isFinite));
    tokens?.steps.forEach((step, i) => {
      const seen = tokens.max[i] ?? NaN;
      if (Number.isFinite(seen) && seen >= (known.at(-1)?.[1] ?? 0)) known.push([step + tokens.cell - 1, seen]);
    });
  } else {
    const times = series.get("step_time_s");
    let sum = 0;
    times?.steps.forEach((step, i) => {
      const each = times.values[i] ?? NaN;
      if (known.length === 0) known.push([step, 0]);
      if (Number.isFinite(each)) known.push([step + times.cell, (sum += each * times.cell)]);
    });
  }
  if (known.length === 0) return null;
  return (step) => {
    const after = known.findIndex(([at]) => at >= step);
    const [to, from] = [known[after], known[after - 1]];
    if (to === undefined) return NaN;
    if (to[0] === step || from === undefined) return to[0] === step ? to[1] : NaN;
    return from[1] + ((to[1] - from[1]) * (step - from[0])) / (to[0] - from[0]);
  };
}

/**
 * A running mean over `width` steps that ends at each point; it spans fewer at the start, and leaves out what is not finite.
 * @param {Series} series @param {number} width steps @returns {number[]}
 */
export function smoothed(series, width) {
  const points = Math.max(1, Math.round(width / series.cell));
  let [sum, n] = [0, 0];
  return series.values.map((value, i) => {
    const gone = series.values[i - points] ?? NaN;
    if (Number.isFinite(value)) [sum, n] = [sum + value, n + 1];
    if (Number.isFinite(gone)) [sum, n] = [sum - gone, n - 1];
    return n > 0 && Number.isFinite(value) ? sum / n : NaN;
  });
}

/**
 * How far `b` is from `a` in each layer that both have, over the steps that both have: the difference, for "absmax" the ratio in log2.
 * @param {HeatAnswer} a @param {HeatAnswer} b @param {string} metric
 * @returns {{ rows: Row[], onlyA: string[], onlyB: string[], columns: number[], cell: number }} rows: those with columns that only one has finite first, then the largest difference, whatever its sign
 */
export function apart(a, b, metric) {
  const placeB = new Map(b.columns.map((step, i) => [step, i]));
  const columns = a.columns.flatMap((step, i) => (placeB.has(step) ? [{ step, i, j: /** @type {number} */ (placeB.get(step)) }] : []));
  const rowB = new Map(b.layers.map((layer, row) => [layer.name, row]));
  const namesA = new Set(a.layers.map((layer) => layer.name));
  /** @type {Row[]} */
  const rows = [];
  a.layers.forEach(({ name }, row) => {
    const other = rowB.get(name);
    if (other === undefined) return;
    const [own, its] = [numbers(a.values[row] ?? []), numbers(b.values[other] ?? [])];
    const values = new Float64Array(columns.length).fill(NaN);
    let [largest, at, sum, n, broken] = [NaN, -1, 0, 0, 0];
    columns.forEach(({ step, i, j }, k) => {
      const [x, y] = [own[i] ?? NaN, its[j] ?? NaN];
      const value = x === y ? 0 : metric === "absmax" ? Math.log2(y / x) : y - x;
      const seen = a.values[row]?.[i] !== null && b.values[other]?.[j] !== null;
      if (!Number.isFinite(value)) return void (broken += seen && Number.isFinite(x) !== Number.isFinite(y) ? 1 : 0);
      values[k] = value;
      sum += value;
      n += 1;
      if (!(Math.abs(value) <= Math.abs(largest))) [largest, at] = [value, step];
    });
    rows.push({ name, values, largest, at, mean: n > 0 ? sum / n : NaN, broken });
  });
  const size = (/** @type {Row} */ row) => (Number.isFinite(row.largest) ? Math.abs(row.largest) : -1);
  rows.sort((one, two) => Number(two.broken > 0) - Number(one.broken > 0) || size(two) - size(one));
  return { rows, onlyA: a.layers.filter((layer) => !rowB.has(layer.name)).map((layer) => layer.name), onlyB: b.layers.filter((layer) => !namesA.has(layer.name)).map((layer) => layer.name), columns: columns.map(({ step }) => step), cell: a.cell };
}
