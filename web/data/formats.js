/** Number formats whose limits the page draws. The same rows as the agent's table; a test compares the two. */

/**
 * @typedef {object} Format
 * @property {string} name
 * @property {number} max largest finite magnitude
 * @property {number} minNormal
 * @property {number} minSubnormal
 * @property {number} exponentBits
 * @property {number} mantissaBits
 */

/**
 * @param {string} name @param {number} exponentBits @param {number} mantissaBits @param {number} max
 * @param {number} minExponent of the smallest normal
 * @returns {Format}
 */
function format(name, exponentBits, mantissaBits, max, minExponent) {
  return { name, max, minNormal: 2 ** minExponent, minSubnormal: 2 ** (minExponent - mantissaBits), exponentBits, mantissaBits };
}

/** @type {ReadonlyMap<string, Format>} */
export const formats = new Map(
  [
    format("fp32", 8, 23, (2 - 2 ** -23) * 2 ** 127, -126),
    format("bf16", 8, 7, (2 - 2 ** -7) * 2 ** 127, -126),
    format("fp16", 5, 10, 65504, -14),
    format("e4m3fn", 4, 3, 448, -6),
    format("e4m3fnuz", 4, 3, 240, -7),
    format("e5m2", 5, 2, 57344, -14),
    format("e5m2fnuz", 5, 2, 57344, -15),
    format("e3m2", 3, 2, 28, -2),
    format("e2m3", 2, 3, 7.5, 0),
    format("e2m1", 2, 1, 6, 0),
  ].map((row) => [row.name, row]),
);

/** Magnitude at or below which rounding to nearest even gives zero. @param {Format} row */
export function zeroAtOrBelow(row) {
  return row.minSubnormal / 2;
}

/**
 * Bits left before `amax * scale` exceeds the maximum; negative is over.
 * @param {Format} row @param {number} amax @param {number} [scale]
 */
export function headroom(row, amax, scale = 1) {
  return Math.log2(row.max) - Math.log2(amax) - Math.log2(scale);
}

/**
 * Where a format lies on an axis of log2 magnitude, for a tensor that is multiplied by `scale` before the cast.
 * @param {Format} row @param {number} [scale]
 * @returns {{ limit: number, normal: number, subnormal: number, zero: number }}
 */
export function band(row, scale = 1) {
  const shift = Math.log2(scale);
  return {
    limit: Math.log2(row.max) - shift,
    normal: Math.log2(row.minNormal) - shift,
    subnormal: Math.log2(row.minSubnormal) - shift,
    zero: Math.log2(zeroAtOrBelow(row)) - shift,
  };
}
