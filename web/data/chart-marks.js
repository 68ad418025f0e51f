/** Alerts and checkpoints as marks over the axis of steps: those that would lie over one another become one, with their number. */

import { overtaken } from "./attempts.js";
import { WEIGHT } from "./health.js";

/** @typedef {import("./health.js").Alert} Alert */
/** @typedef {import("./geometry.js").Range} Range */
/** @typedef {import("./attempts.js").Attempt} Attempt */
/** @typedef {{ step: number, attempt: number, rank: number | null, detail: Record<string, unknown> }} Checkpoint */
/** @typedef {{ step: number, paths: string[] }} Saved what was saved after one step */
/**
 * One mark. Where it stands for several things, `at` is the gravest or the first of them.
 * @template T
 * @typedef {{ at: T, share: number, n: number, first: number, last: number }} Mark share: where on the axis, 0..1
 */

/** Pixels that a mark and the number beside it take. */
const ROOM = 26;

/**
 * @template T
 * @param {readonly T[]} things @param {(thing: T) => number} stepOf @param {Range} range
 * @param {number} width of the axis, pixels @param {(thing: T) => number} [weight] which one stands for several
 * @returns {Mark<T>[]} from left to right; each of `things` in the range is counted in one of them
 */
export function marksOf(things, stepOf, range, width, weight = () => 0) {
  const span = range.to + 1 - range.from;
  const inside = things.filter((thing) => stepOf(thing) >= range.from && stepOf(thing) <= range.to).sort((a, b) => stepOf(a) - stepOf(b));
  /** @type {Mark<T>[]} */
  const marks = [];
  for (const thing of inside) {
    const step = stepOf(thing);
    const share = (step + 0.5 - range.from) / span;
    const before = marks.at(-1);
    if (before && (share - before.share) * width < ROOM) {
      before.n += 1;
      before.last = step;
      if (weight(thing) > weight(before.at)) before.at = thing;
    } else marks.push({ at: thing, share, n: 1, first: step, last: step });
  }
  return marks;
}

/** The step at which an alert is marked: of one that has been open since before the range, where the range begins. @param {Range} range @returns {(alert: Alert) => number} */
export const alertStep = (range) => (alert) => (alert.last_step >= range.from ? Math.max(alert.first_step, range.from) : alert.first_step);

/** @param {Alert} alert */
export const alertWeight = (alert) => WEIGHT[alert.severity];

/**
 * By step what was saved, whatever number of ranks did so, on steps that no later attempt made again.
 * @param {readonly Checkpoint[]} checkpoints @param {readonly Attempt[]} attempts @returns {Saved[]} ascending
 */
export function savedSteps(checkpoints, attempts) {
  /** @type {Map<number, Set<string>>} */
  const known = new Map();
  for (const { step, attempt, detail } of checkpoints) {
    if (overtaken({ attempt, first_step: step }, attempts)) continue;
    const paths = known.get(step) ?? new Set();
    known.set(step, paths.add(String(detail["path"] ?? detail["name"] ?? "")));
  }
  return [...known].map(([step, paths]) => ({ step, paths: [...paths] })).sort((a, b) => a.step - b.step);
}
