/** Scalar series: pooled history from the server with live points merged into its last cells. */

import { number, numbers } from "./json.js";

/** @typedef {import("./json.js").JsonNumber} JsonNumber */
/**
 * @typedef {object} Series
 * @property {string} name
 * @property {number} cell steps a point
 * @property {number[]} steps first step of each point, ascending
 * @property {number[]} values mean of the finite values, NaN when there was none
 * @property {number[]} min
 * @property {number[]} max
 * @property {number[]} weight finite values merged into each point
 * @property {number[]} nonfinite steps at which a NaN or an infinity came
 */
/** @typedef {{ name: string, cell: number, steps: number[], values: JsonNumber[], min: JsonNumber[], max: JsonNumber[] }} SeriesAnswer */

/** Points a series may have before it is pooled by two. */
export const POINT_LIMIT = 1200;

/** @param {SeriesAnswer} answer @returns {Series} */
export function seriesFrom(answer) {
  const values = numbers(answer.values);
  /** @type {number[]} */
  const nonfinite = [];
  answer.steps.forEach((step, i) => {
    const seen = [answer.values[i], answer.min[i], answer.max[i]].map(number);
    if (seen.some((value) => value !== undefined && !Number.isFinite(value))) nonfinite.push(step);
  });
  return {
    name: answer.name,
    cell: answer.cell,
    steps: [...answer.steps],
    values,
    min: numbers(answer.min),
    max: numbers(answer.max),
    weight: values.map((value) => (Number.isFinite(value) ? answer.cell : 0)),
    nonfinite,
  };
}

/** @param {string} name @returns {Series} */
export function emptySeries(name) {
  return { name, cell: 1, steps: [], values: [], min: [], max: [], weight: [], nonfinite: [] };
}

/**
 * Merge live points in place. Points at or before the last step of a finished cell are repeats and are left out.
 * @param {Series} series @param {readonly (readonly [number, JsonNumber])[]} points
 */
export function appendPoints(series, points) {
  for (const [step, json] of points) {
    const value = number(json);
    if (value === undefined) continue;
    const first = Math.floor(step / series.cell) * series.cell;
    const last = series.steps.at(-1);
    if (last !== undefined && (first < last || (first === last && series.cell === 1))) continue;
    if (!Number.isFinite(value)) series.nonfinite.push(step);
    if (first === last) fold(series, series.steps.length - 1, value);
    else {
      const finite = Number.isFinite(value);
      series.steps.push(first);
      series.values.push(finite ? value : NaN);
      series.min.push(finite ? value : NaN);
      series.max.push(finite ? value : NaN);
      series.weight.push(finite ? 1 : 0);
    }
    if (series.steps.length > POINT_LIMIT) halve(series);
  }
}

/** @param {Series} series @param {number} at @param {number} value */
function fold(series, at, value) {
  if (!Number.isFinite(value)) return;
  const weight = series.weight[at] ?? 0;
  const mean = series.values[at] ?? NaN;
  series.weight[at] = weight + 1;
  series.values[at] = weight === 0 ? value : mean + (value - mean) / (weight + 1);
  series.min[at] = weight === 0 ? value : Math.min(series.min[at] ?? value, value);
  series.max[at] = weight === 0 ? value : Math.max(series.max[at] ?? value, value);
}

/** @param {Series} series */
function halve(series) {
  const old = { ...series };
  const cell = series.cell * 2;
  Object.assign(series, { ...emptySeries(series.name), cell, nonfinite: series.nonfinite });
  old.steps.forEach((step, i) => {
    const first = Math.floor(step / cell) * cell;
    const [value, low, high, weight] = [old.values[i] ?? NaN, old.min[i] ?? NaN, old.max[i] ?? NaN, old.weight[i] ?? 0];
    const at = series.steps.length - 1;
    const held = series.weight[at] ?? 0;
    if (series.steps[at] !== first) {
      series.steps.push(first);
      series.values.push(value);
      series.min.push(low);
      series.max.push(high);
      series.weight.push(weight);
    } else if (weight > 0) {
      series.values[at] = held === 0 ? value : ((series.values[at] ?? 0) * held + value * weight) / (held + weight);
      series.min[at] = held === 0 ? low : Math.min(series.min[at] ?? low, low);
      series.max[at] = held === 0 ? high : Math.max(series.max[at] ?? high, high);
      series.weight[at] = held + weight;
    }
  });
}

/** @param {Series | undefined} series @returns {number | undefined} */
export function lastValue(series) {
  return series?.values.at(-1);
}
