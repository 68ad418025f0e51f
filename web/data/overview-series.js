/** What the charts of a run show: which series are asked for, and those that follow from others. */

import { TOKENS, along } from "./compare.js";
import { emptySeries } from "./series.js";

/** @typedef {import("./series.js").Series} Series */
/** @typedef {"tokens" | "samples" | "steps"} Unit of work */

/** Work in a second as trainings log it themselves. @type {readonly [Unit, readonly string[]][]} */
const RATES = [
  ["tokens", ["tokens_per_second", "tokens_per_sec", "tokens_per_s"]],
  ["samples", ["samples_per_second", "samples_per_sec", "samples_per_s"]],
];

/** Work since the start. @type {readonly [Unit, readonly string[]][]} */
const COUNTERS = [
  ["tokens", TOKENS],
  ["samples", ["samples", "consumed_samples", "consumed samples"]],
];

/** Names of all series that the charts need. */
export const SCALARS = [
  ...["loss", "raw_loss", "raw_loss_max", "logged/loss", "grad_norm", "grad_norm/clipped", "clip_norm", "lr", "loss_scale", "step_time_s"],
  ...[...RATES, ...COUNTERS].flatMap(([, names]) => names),
];

/** @typedef {{ unit: Unit, series: Series }} Throughput */

/** By the series of step times, what was made of them at a revision. @type {WeakMap<Series, { rev: number, made: Throughput }>} */
const kept = new WeakMap();

/**
 * Work in a second: as it was logged; else as tokens or samples were counted, over the time that the steps took; else steps.
 * The same object as long as the data stay, changed in place when `rev` does.
 * @param {ReadonlyMap<string, Series>} series @param {number} rev @returns {Throughput | null} null: nothing tells
 */
export function throughputOf(series, rev) {
  for (const [unit, names] of RATES) {
    const logged = held(series, names);
    if (logged) return { unit, series: logged };
  }
  const times = held(series, ["step_time_s"]);
  if (!times) return null;
  const known = kept.get(times);
  if (known?.rev === rev) return known.made;
  const counted = COUNTERS.flatMap(([unit, names]) => {
    const counter = held(series, names);
    const made = counter && rate(counter, along(series, "time"));
    return made && made.steps.length > 0 ? [{ unit, series: made }] : [];
  })[0];
  const made = counted ?? { unit: /** @type {const} */ ("steps"), series: inverse(times) };
  if (known) made.series = Object.assign(known.made.series, made.series);
  kept.set(times, { rev, made });
  return made;
}

/** @param {ReadonlyMap<string, Series>} series @param {readonly string[]} names */
function held(series, names) {
  return names.map((name) => series.get(name)).find((one) => one !== undefined && one.steps.length > 0);
}

/** Steps in a second; over several the number of steps by the time of all, so no mean of rates. @param {Series} times @returns {Series} */
function inverse(times) {
  const over = (/** @type {number} */ seconds) => (seconds > 0 ? 1 / seconds : NaN);
  return { ...times, name: "throughput", values: times.values.map(over), min: times.max.map(over), max: times.min.map(over), nonfinite: [] };
}

/** Points of several steps each that a rate spans: a counter that is logged now and then was last logged anywhere in its cell. */
const WINDOW = 8;

/**
 * How fast a counter grew up to each of its points; no extremes are known of what lies between.
 * @param {Series} counter @param {((step: number) => number) | null} seconds since the start of a step @returns {Series}
 */
function rate(counter, seconds) {
  const made = { ...emptySeries("throughput"), cell: counter.cell };
  if (seconds === null) return made;
  /** @type {[number, number][]} */
  const known = [];
  counter.steps.forEach((step, i) => {
    // A counter only grows: its largest value is that of the last step of the cell.
    const [total, at] = [counter.max[i] ?? NaN, seconds(step + counter.cell)];
    if (!Number.isFinite(total) || !Number.isFinite(at)) return;
    if (total < (known.at(-1)?.[0] ?? 0)) known.length = 0; // it began anew
    known.push([total, at]);
    const before = known.at(counter.cell === 1 ? -2 : -1 - WINDOW) ?? known[0];
    const each = before === undefined ? NaN : (total - before[0]) / (at - before[1]);
    if (!Number.isFinite(each)) return; // the first point
    made.steps.push(step);
    for (const values of [made.values, made.min, made.max]) values.push(each);
    made.weight.push(counter.cell);
  });
  return made;
}
