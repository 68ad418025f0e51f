/** JSON has no NaN and no infinities: the server writes them as strings, and a missing number as null. */

/** @typedef {number | "NaN" | "Infinity" | "-Infinity" | null} JsonNumber */

/**
 * The number behind its JSON form; undefined for one that is missing.
 * @param {JsonNumber | undefined} value
 * @returns {number | undefined}
 */
export function number(value) {
  if (value === null || value === undefined) return undefined;
  return typeof value === "number" ? value : Number(value);
}

/**
 * @param {readonly JsonNumber[]} values
 * @returns {number[]} missing ones as NaN
 */
export function numbers(values) {
  return values.map((value) => number(value) ?? NaN);
}
