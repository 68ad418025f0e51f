/** The cards of a run by time: whose reading is whose, cells of the heat map, where memory went. Unknown is never zero. */

import { number, numbers } from "./json.js";
import { chipWord } from "./run-progress.js";
import { linearTicks } from "./ticks.js";

/** @typedef {import("./types.js").DeviceSample} DeviceSample */
/** @typedef {import("./json.js").JsonNumber} JsonNumber */
/** @typedef {import("../state.js").Load<any>} AnyLoad */
/**
 * @typedef {object} CardSeries a figure of a card as the server pools it
 * @property {number} rank
 * @property {string} backend
 * @property {number} index
 * @property {string | null} pci
 * @property {string | null} name
 * @property {number | null} vram_total_bytes
 * @property {string} figure
 * @property {number} cell seconds; 0: every reading is there
 * @property {number[]} times seconds since 1970
 * @property {JsonNumber[]} values
 * @property {JsonNumber[]} min
 * @property {JsonNumber[]} max
 */
/** @typedef {{ key: string, rank: number, index: number, backend: string, pci: string | null, name: string | null, total: number | null, last: DeviceSample | null, silent: boolean }} Card `silent`: others have been read since */
/** @typedef {{ key: string, at: number, cell: number, mean: number, low: number, high: number }} Reading seconds */
/** @typedef {{ from: number, to: number }} Span seconds since 1970 */
/** @typedef {{ columns: number, span: Span, mean: Float64Array, low: Float64Array, high: Float64Array }} Cells rows are cards; NaN where nothing was read */
/** @typedef {{ step: number, at: number, attempt: number }} StepTime */

/** @type {{ history: import("../state.js").Load<CardSeries[]>, card: import("../state.js").Load<CardSeries[]>, times: import("../state.js").Load<StepTime[]>, phases: import("../state.js").Load<import("./series.js").Series[]>, cursor: { row: number, column: number } | null }} */
export const EMPTY_CARDS = {
  history: { status: "idle", data: null, error: null },
  card: { status: "idle", data: null, error: null },
  times: { status: "idle", data: null, error: null },
  phases: { status: "idle", data: null, error: null },
  cursor: null,
};

/** @typedef {typeof EMPTY_CARDS} CardsState */

/** What the heat map shows, with the value at the emphatic end; null: the largest there is. */
export const FIGURES = /** @type {const} */ ({
  busy_percent: { unit: "%", top: 100 },
  vram: { unit: "%", top: 100 },
  memory_busy_percent: { unit: "%", top: 100 },
  power_watts: { unit: "W", top: null },
  temperature_celsius: { unit: "\u00b0C", top: null },
  core_clock_mhz: { unit: "MHz", top: null },
  memory_clock_mhz: { unit: "MHz", top: null },
});

/** @typedef {keyof typeof FIGURES} Figure */

/** Readings come once a second; a card that others have left so far behind has stopped answering. */
const SILENT_S = 15;

/** Seconds of readings that the page holds one by one. */
export const RECENT_S = 300;

/** A card keeps its place when its index changes. @param {{ rank?: number, pci?: string | null, backend: string, index: number }} of */
export const cardKey = ({ rank = 0, pci, backend, index }) => `${rank} ${pci ?? `${backend}/${index}`}`;

const seconds = (/** @type {DeviceSample} */ sample) => sample.time_ns / 1e9;

/**
 * The cards of recent readings and of what is pooled, by rank and index.
 * @param {readonly DeviceSample[]} samples as they came @param {readonly CardSeries[]} series
 * @returns {Card[]}
 */
export function cardsOf(samples, series) {
  /** @type {Map<string, Card>} */
  const cards = new Map();
  for (const one of series) cards.set(cardKey(one), { key: cardKey(one), rank: one.rank, index: one.index, backend: one.backend, pci: one.pci, name: one.name, total: one.vram_total_bytes, last: null, silent: true });
  for (const sample of samples) {
    if (sample.backend === "none") continue;
    const key = cardKey(sample);
    cards.set(key, { key, rank: sample.rank ?? 0, index: sample.index, backend: sample.backend, pci: sample.pci ?? null, name: sample.name ?? null, total: sample.vram_total_bytes ?? cards.get(key)?.total ?? null, last: sample, silent: false });
  }
  const found = [...cards.values()];
  // The middle one: a clock that is a day ahead must not make all others look silent.
  const newest = found.flatMap(({ last }) => (last ? [seconds(last)] : [])).sort((a, b) => a - b);
  const middle = newest[newest.length >> 1] ?? 0;
  for (const card of found) card.silent = card.last === null || seconds(card.last) < middle - SILENT_S;
  return found.sort((a, b) => a.rank - b.rank || a.index - b.index || (a.key < b.key ? -1 : 1));
}

/** @param {DeviceSample} sample @param {Figure} figure @returns {number} NaN where it could not be read */
export function valueOf(sample, figure) {
  if (figure !== "vram") return number(sample[figure]) ?? NaN;
  const { vram_used_bytes: used, vram_total_bytes: total } = sample;
  return used === null || used === undefined || !total ? NaN : (used / total) * 100;
}

/** @param {readonly DeviceSample[]} samples @param {Figure} figure @returns {Reading[]} */
export function readingsOf(samples, figure) {
  return samples
    .filter(({ backend }) => backend !== "none")
    .map((sample) => {
      const mean = valueOf(sample, figure);
      return { key: cardKey(sample), at: seconds(sample), cell: 0, mean, low: mean, high: mean };
    });
}

/** @param {readonly CardSeries[]} series @param {Figure} figure @returns {Reading[]} */
export function readingsFrom(series, figure) {
  const name = figure === "vram" ? "vram_used_bytes" : figure;
  return series
    .filter((one) => one.figure === name)
    .flatMap((one) => {
      const factor = figure === "vram" ? 100 / (one.vram_total_bytes || NaN) : 1;
      const [means, lows, highs] = [one.values, one.min, one.max].map(numbers);
      return one.times.map((at, i) => ({ key: cardKey(one), at, cell: one.cell, mean: (means?.[i] ?? NaN) * factor, low: (lows?.[i] ?? NaN) * factor, high: (highs?.[i] ?? NaN) * factor }));
    });
}

/** The five minutes before the newest reading that came; a clock that was ahead before it was put right is left out. @param {readonly DeviceSample[]} samples as they came @returns {Span | null} */
export function recentSpan(samples) {
  const cards = cardsOf(samples, []).filter(({ silent }) => !silent);
  const newest = cards.map(({ last }) => (last ? seconds(last) : 0)).sort((a, b) => a - b);
  const to = newest[newest.length >> 1];
  if (to === undefined) return null;
  const times = samples.map(seconds).filter((at) => at >= to - RECENT_S && at <= to);
  // A run that has just begun takes the room that it needs, half a minute at least.
  return { from: Math.min(to - 30, times.reduce((least, at) => Math.min(least, at), to)), to: to + 1 };
}

/** @param {readonly Reading[]} readings @returns {Span | null} */
export function wholeSpan(readings) {
  let [from, to] = [Infinity, -Infinity];
  for (const { at, cell } of readings) {
    from = Math.min(from, at);
    to = Math.max(to, at + Math.max(cell, 1));
  }
  return from < to ? { from, to } : null;
}

/**
 * One row for each card: the mean of each column, and the extremes, which no pooling hides.
 * @param {readonly string[]} keys @param {readonly Reading[]} readings @param {Span} span @param {number} columns at most
 * @returns {Cells}
 */
export function cellsOf(keys, readings, span, columns) {
  const length = span.to - span.from;
  const widest = readings.reduce((most, { cell }) => Math.max(most, cell), 1);
  const count = Math.max(1, Math.min(columns, Math.floor(length / widest)));
  const row = new Map(keys.map((key, i) => [key, i]));
  const blank = () => new Float64Array(keys.length * count).fill(NaN);
  const [sum, weight, low, high] = [blank(), new Float64Array(keys.length * count), blank(), blank()];
  for (const reading of readings) {
    const place = row.get(reading.key);
    if (place === undefined || Number.isNaN(reading.mean) || reading.at + reading.cell < span.from || reading.at >= span.to) continue;
    const first = Math.max(0, Math.floor(((reading.at - span.from) / length) * count));
    const last = reading.cell === 0 ? first : Math.min(count - 1, Math.ceil(((reading.at + reading.cell - span.from) / length) * count) - 1);
    for (let column = first; column <= last; column++) {
      const i = place * count + column;
      sum[i] = (weight[i] ? (sum[i] ?? 0) : 0) + reading.mean;
      weight[i] = (weight[i] ?? 0) + 1;
      low[i] = Math.min(low[i] || low[i] === 0 ? /** @type {number} */ (low[i]) : Infinity, reading.low);
      high[i] = Math.max(high[i] || high[i] === 0 ? /** @type {number} */ (high[i]) : -Infinity, reading.high);
    }
  }
  return { columns: count, span, mean: sum.map((total, i) => total / (weight[i] || NaN)), low, high };
}

/** Mean of each card over what is shown; NaN where nothing was read. @param {Cells} cells @param {number} rows */
export function meansOf(cells, rows) {
  return Array.from({ length: rows }, (_, row) => {
    const seen = cells.mean.subarray(row * cells.columns, (row + 1) * cells.columns).filter((value) => !Number.isNaN(value));
    return seen.length === 0 ? NaN : seen.reduce((total, value) => total + value, 0) / seen.length;
  });
}

/** Between the cards with the least and the largest mean. @param {readonly number[]} means @returns {{ low: number, high: number, spread: number } | null} rows; null: fewer than two cards */
export function balanceOf(means) {
  const known = means.flatMap((mean, row) => (Number.isNaN(mean) ? [] : [{ mean, row }])).sort((a, b) => a.mean - b.mean);
  const [first, last] = [known[0], known.at(-1)];
  return first && last && first !== last ? { low: first.row, high: last.row, spread: last.mean - first.mean } : null;
}

/**
 * Where a card's memory is, as parts of its total in bytes: in tensors, kept by the allocator, used by others, free.
 * @param {DeviceSample} sample @returns {{ total: number, used: number, allocated: number | null, cached: number | null, other: number | null, free: number } | null} null where total or used is not known
 */
export function bandsOf(sample) {
  const { vram_used_bytes: used, vram_total_bytes: total, allocated_bytes: allocated, reserved_bytes: reserved } = sample;
  if (!total || used === null || used === undefined) return null;
  const known = typeof allocated === "number" ? allocated : null;
  const held = typeof reserved === "number" ? Math.max(reserved, known ?? 0) : null;
  return { total, used, allocated: known, cached: held === null || known === null ? null : held - known, other: held === null && known === null ? null : Math.max(0, used - (held ?? known ?? 0)), free: Math.max(0, total - used) };
}

const EVERY = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Round local times. @param {Span} span @param {number} count about how many @param {number} offset seconds of local time before UTC @returns {number[]} */
export function timeTicks({ from, to }, count, offset) {
  const wanted = (to - from) / Math.max(1, count);
  const every = EVERY.find((step) => step >= wanted) ?? Math.ceil(wanted / 604800) * 604800;
  const ticks = [];
  for (let at = Math.ceil((from - offset) / every) * every + offset; at <= to; at += every) ticks.push(at);
  return ticks;
}

/** The step that was going on. @param {readonly StepTime[]} times @param {number} at seconds @returns {number | null} null before the first and after the last */
export function stepAt(times, at) {
  const next = times.findIndex((time) => time.at >= at);
  const [before, after] = [times[next - 1], times[next]];
  if (!before || !after) return null;
  if (after.attempt !== before.attempt) return null;
  return Math.min(after.step, Math.floor(before.step + 1 + ((at - before.at) / (after.at - before.at || 1)) * (after.step - before.step)));
}

/** When a step ended. @param {readonly StepTime[]} times @param {number} step @returns {number | null} of the last attempt that made it */
export function timeOf(times, step) {
  for (let i = times.length - 1; i >= 0; i--) {
    const [before, after] = [times[i - 1], times[i]];
    if (after?.step === step) return after.at;
    if (!before || !after || before.attempt !== after.attempt || step <= before.step || step > after.step) continue;
    return before.at + ((step - before.step) / (after.step - before.step)) * (after.at - before.at);
  }
  return null;
}

/** Round steps on an axis of time. @param {readonly StepTime[]} times @param {Span} span @param {number} count @returns {{ step: number, at: number }[]} */
export function stepMarks(times, span, count) {
  const inside = times.filter(({ at }) => at >= span.from && at <= span.to);
  const [first, last] = [inside[0], inside.at(-1)];
  if (!first || !last) return [];
  const low = Math.min(...inside.map(({ step }) => step));
  const high = Math.max(...inside.map(({ step }) => step));
  return linearTicks(low, high, Math.min(count, Math.max(1, high - low)))
    .filter(Number.isInteger)
    .flatMap((step) => {
      const at = timeOf(times, step);
      return at === null || at < span.from || at > span.to ? [] : [{ step, at }];
    });
}

/** In the order of a step; what is not known comes last. @param {readonly string[]} names */
export const inOrder = (names) => [...names].sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));

const PHASES = ["phase/data_s", "phase/forward_s", "phase/backward_s", "phase/optimizer_s"];
const place = (/** @type {string} */ name) => (PHASES.includes(name) ? PHASES.indexOf(name) : PHASES.length);

/** Of each phase the mean seconds of a step, and its share of all. @param {readonly import("./series.js").Series[]} phases */
export function phaseShares(phases) {
  const spent = phases.map(({ name, values }) => {
    const finite = values.filter(Number.isFinite);
    return { name, seconds: finite.length === 0 ? NaN : finite.reduce((total, value) => total + value, 0) / finite.length };
  });
  const whole = spent.reduce((total, { seconds: own }) => total + (Number.isNaN(own) ? 0 : own), 0);
  return spent.map(({ name, seconds: own }) => ({ name, seconds: own, share: whole > 0 ? own / whole : NaN }));
}

/** What stands before a card's row: first what tells it from the others. @param {Pick<DeviceSample, "rank" | "index" | "name" | "backend">} card */
export const rowName = ({ rank, index, name, backend }) => `${rank} \u00b7 ${index} \u00b7 ${chipWord(name ?? backend)}`;
