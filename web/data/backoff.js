/** Reconnect delays: full jitter, so that twenty viewers do not all return in the same instant. */

const FIRST_MS = 500;
const LONGEST_MS = 15_000;

/** @param {number} failures in a row, 0 for the first try @param {number} random in [0, 1) @returns {number} milliseconds */
export function reconnectDelay(failures, random) {
  return Math.round(100 + random * Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 16)));
}
