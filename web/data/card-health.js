/** What cards read seldom: links, errors, what slows them. Most readings are without it, so the newest that is known counts. */

import { cardKey } from "./cards.js";
import { number } from "./json.js";

/** @typedef {import("./types.js").DeviceSample} DeviceSample */

/** Figures of a reading that are there once in ten seconds or in a minute. */
export const SELDOM = /** @type {const} */ (["pcie_width", "pcie_speed_gts", "pcie_max_width", "pcie_max_speed_gts", "pcie_replays", "xgmi_links", "xgmi_bytes_per_s", "ecc_corrected", "ecc_uncorrected", "throttle_power_percent", "throttle_thermal_percent", "throttle_brake_percent"]);

/** @typedef {typeof SELDOM[number]} SeldomFigure */
/** @typedef {Partial<Record<SeldomFigure, number>>} Health */

/** Seconds that a line of such a figure may go without a reading: one a minute, and one may be lost. */
export const PACE_S = 60;

/** Of the time, by heat or a signal from outside: the rule's default. */
const SLOWED_PERCENT = 20;

/** The newest of each figure, by the key of the card. @param {readonly DeviceSample[]} samples as they came @returns {Map<string, Health>} */
export function healthOf(samples) {
  /** @type {Map<string, Health>} */
  const found = new Map();
  for (const sample of samples) {
    for (const name of SELDOM) {
      const value = number(sample[name]);
      if (value === undefined || Number.isNaN(value)) continue;
      const key = cardKey(sample);
      const health = found.get(key) ?? {};
      health[name] = value;
      found.set(key, health);
    }
  }
  return found;
}

/** Whether the link has fewer lanes than it could have. @param {Health} health */
export const isNarrow = ({ pcie_width: width, pcie_max_width: most }) => width !== undefined && most !== undefined && width < most;

/** @param {number | undefined} share of the time, in percent */
export const isSlowed = (share) => share !== undefined && share > SLOWED_PERCENT;
