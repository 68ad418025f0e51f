/** Metrics of one layer over the steps: a mean, and between which values it lay. */

import { number } from "./json.js";

/** @typedef {import("./json.js").JsonNumber} JsonNumber */
/** @typedef {{ values: JsonNumber[], min: JsonNumber[], max: JsonNumber[] }} Metric */
/** @typedef {{ steps: number[], cell: number, [metric: string]: any }} LayerSeriesAnswer */
/** @typedef {(number | undefined)[]} Values undefined: nothing was recorded in that cell */
/** @typedef {{ name: string, mean: Values, least: Values, most: Values }} Trace */
/** @typedef {{ steps: number[], cell: number, traces: Trace[] }} LayerSeries */

/** In the order in which the drawer shows them. */
export const LAYER_METRICS = ["headroom", "absmax", "rms", "zeros", "underflow"];

/** @param {LayerSeriesAnswer} answer @param {readonly string[]} [names] @returns {LayerSeries} only metrics that were seen */
export function layerSeriesFrom(answer, names = LAYER_METRICS) {
  const traces = names.flatMap((name) => {
    /** @type {Metric | undefined} */
    const metric = answer[name];
    if (metric === undefined || metric.max.every((value) => value === null)) return [];
    return [{ name, mean: metric.values.map(number), least: metric.min.map(number), most: metric.max.map(number) }];
  });
  return { steps: answer.steps, cell: answer.cell, traces };
}

/**
 * The scale of a small chart: log for magnitudes, which span octaves, and shares of the height from the bottom.
 * @param {Trace} trace
 * @returns {{ low: number, high: number, log: boolean, at: (value: number) => number | undefined }} undefined: cannot be shown there
 */
export function traceScale({ name, least, most }) {
  const log = name === "absmax" || name === "rms" || name === "ratio";
  const shown = [...least, ...most].filter((value) => value !== undefined).filter((value) => Number.isFinite(value) && (!log || value > 0));
  const low = shown.reduce((a, b) => Math.min(a, b), Infinity);
  const high = shown.reduce((a, b) => Math.max(a, b), -Infinity);
  const place = log ? Math.log2 : (/** @type {number} */ value) => value;
  const [from, to] = [place(low), place(high)];
  return {
    low,
    high,
    log,
    at: (value) => {
      const x = place(value);
      if (!Number.isFinite(x)) return undefined;
      return to > from ? (x - from) / (to - from) : 0.5;
    },
  };
}
