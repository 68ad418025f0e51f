/** Which format and scale would hold the values of a histogram. */

import { band, formats } from "./formats.js";
import { edgeLog2 } from "./histogram.js";

/** @typedef {import("./histogram.js").HistogramColumn} HistogramColumn */
/**
 * @typedef {object} Fit
 * @property {string} format
 * @property {number} scale log2 of the power of two that values are multiplied by before the cast
 * @property {number} lost share of the non-zero values that may round to zero, an upper bound: bins count whole
 * @property {number} subnormal share that is kept with fewer bits of mantissa, an upper bound
 * @property {number} headroom bits left above the largest bin
 * @property {boolean} fits whether no more is lost than LOST_SHARE
 */

/** Largest share of values that a format may round to zero and still be suggested. */
export const LOST_SHARE = 1e-3;

/** Bits kept free above the largest value that was seen: the next steps may have larger ones. */
export const MARGIN_BITS = 1;

/**
 * Formats from the narrowest, each with the largest power of two that leaves MARGIN_BITS. bf16 and fp32 take none: their
 * range is that of the values.
 * @param {readonly HistogramColumn[]} columns counts by half octaves @param {boolean} fnuz whether the chip's float8 are those without infinities and -0
 * @returns {{ fits: Fit[], best: Fit | null }} empty and null when nothing was counted
 */
export function advise(columns, fnuz) {
  /** @type {Map<number, number>} bin -> count */
  const total = new Map();
  for (const { first, counts } of columns) counts.forEach((count, i) => count > 0 && total.set(first + i, (total.get(first + i) ?? 0) + count));
  if (total.size === 0) return { fits: [], best: null };
  const bins = [...total.keys()];
  const all = [...total.values()].reduce((sum, count) => sum + count, 0);
  const top = edgeLog2(bins.reduce((a, b) => Math.max(a, b)) + 1);
  const names = fnuz ? ["e4m3fnuz", "e5m2fnuz", "fp16", "bf16"] : ["e4m3fn", "e5m2", "fp16", "bf16"];
  const fits = names.map((name) => {
    const format = /** @type {import("./formats.js").Format} */ (formats.get(name));
    const scale = format.exponentBits >= 8 ? 0 : Math.floor(Math.log2(format.max) - top - MARGIN_BITS);
    const { limit, normal, zero } = band(format, 2 ** scale);
    let lost = 0;
    let subnormal = 0;
    for (const [bin, count] of total) {
      if (edgeLog2(bin) < zero) lost += count;
      else if (edgeLog2(bin) < normal) subnormal += count;
    }
    return { format: name, scale, lost: lost / all, subnormal: subnormal / all, headroom: limit - top, fits: lost / all <= LOST_SHARE && limit >= top };
  });
  return { fits, best: fits.find((fit) => fit.fits) ?? null };
}
