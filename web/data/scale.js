/** From a value of a metric to a place on its colour scale. */

import { MISSING_BITS } from "./fsb1.js";

/** @typedef {import("./colour.js").Palette} Palette */
/** @typedef {"bits" | "log2" | "share" | "signed" | "count" | "ratio"} ScaleKind */
/**
 * @typedef {object} Scale
 * @property {ScaleKind} kind
 * @property {number} low value (or its log2; of a ratio log10, the lower end of its healthy band) at the calm end
 * @property {number} high value (or its logarithm, as above) at the emphatic end
 * @property {number} beyond bits (of a ratio decades) over the limit at the far end of the hatched part; 0 where no limit exists
 */

export const NORMAL = 0;
export const OVER = 1;
export const NONFINITE = 2;
export const MISSING = 3;

/** Below a band. */
export const UNDER = 4;

/** @type {Record<string, ScaleKind>} */
export const METRICS = {
  headroom: "bits",
  absmax: "log2",
  absmin: "log2",
  rms: "log2",
  mean: "signed",
  zeros: "share",
  underflow: "share",
  overflow: "share",
  nonfinite: "count",
  ratio: "ratio",
};

/** Values of which the ends of a scale of magnitudes are taken, if there are more. */
const SAMPLE = 50_000;

/** With fewer of them all are looked at: a run that has just begun fills a corner of its cells. */
const FEW = 1000;

/** Smallest share with a colour of its own: 2^-10, about 0.1 %. */
const LEAST_SHARE = -10;

/**
 * The scale for a metric over the values at hand. Domains move in coarse steps, so that colours stay put as data comes.
 * @param {string} metric @param {ArrayLike<number>} values finite ones decide @param {readonly [number, number]} [band] between which a ratio is healthy
 * @returns {Scale}
 */
export function scaleFor(metric, values, band = [1e-7, 0.1]) {
  const kind = METRICS[metric] ?? "log2";
  if (kind === "ratio") return { kind, low: Math.log10(band[0]), high: Math.log10(band[1]), beyond: 1 };
  if (kind === "share") return { kind, low: LEAST_SHARE, high: 0, beyond: 0 };
  if (kind === "count") return { kind, low: 0, high: 1, beyond: 0 };
  if (kind === "bits") return { kind, low: calmBits(values), high: 0, beyond: 4 };
  if (kind === "signed") {
    let most = 0;
    for (let i = 0; i < values.length; i++) {
      const size = Math.abs(/** @type {number} */ (values[i]));
      if (size > most && size < Infinity) most = size;
    }
    return { kind, low: 0, high: most > 0 ? 2 ** Math.ceil(Math.log2(most)) : 1, beyond: 0 };
  }
  const found = exponents(values, Math.ceil(values.length / SAMPLE) | 1);
  const all = found.length < FEW ? exponents(values, 1) : found;
  if (all.length === 0) return { kind, low: 0, high: 1, beyond: 0 };
  // One wild value must not flatten all the others: it is drawn at the emphatic end, which the legend marks with a plus.
  const high = Math.ceil(quantile(all, 0.995) / 2) * 2;
  return { kind, low: Math.min(high - 4, Math.floor(quantile(all, 0.005) / 2) * 2), high, beyond: 0 };
}

/** Where headroom is of no concern any more: 16 bits, unless all of it is beyond. @param {ArrayLike<number>} values */
function calmBits(values) {
  let most = 16;
  for (let i = 0; i < values.length; i++) {
    const value = /** @type {number} */ (values[i]);
    if (value <= 16 && value > -Infinity) return 16;
    if (value > most && value < Infinity) most = value;
  }
  return Math.ceil(most / 16) * 16;
}

/** log2 of what has one. @param {ArrayLike<number>} values @param {number} every how many are passed over for one that counts */
function exponents(values, every) {
  /** @type {number[]} */
  const found = [];
  for (let i = 0; i < values.length; i += every) {
    const value = /** @type {number} */ (values[i]);
    if (value > 0 && value < Infinity) found.push(Math.log2(value));
  }
  return found;
}

/** @param {readonly number[]} values some @param {number} share 0..1 @returns {number} of at most some 5,000 of them */
function quantile(values, share) {
  const every = Math.ceil(values.length / 5000);
  const sample = values.filter((_, i) => i % every === 0).sort((a, b) => a - b);
  return sample[Math.min(sample.length - 1, Math.floor(share * sample.length))] ?? 0;
}

/**
 * 0 at the calm end, 1 at the emphatic one; above 1 beyond the limit (2 at the far end).
 * @param {Scale} scale @param {number} value finite
 */
export function position(scale, value) {
  if (scale.kind === "bits" && value < 0) return 1 + Math.min(1, -value / scale.beyond);
  if (scale.kind === "ratio") {
    const x = Math.log10(value);
    return x > scale.high ? 1 + Math.min(1, (x - scale.high) / scale.beyond) : Math.max(0, (x - scale.low) / (scale.high - scale.low));
  }
  const x = scale.kind === "log2" || scale.kind === "share" ? (value > 0 ? Math.log2(value) : -Infinity) : scale.kind === "signed" ? Math.abs(value) : value;
  return Math.min(1, Math.max(0, (x - scale.low) / (scale.high - scale.low)));
}

/**
 * @param {Scale} scale @param {number} value
 * @returns {number} NORMAL, OVER, UNDER or NONFINITE
 */
export function classify(scale, value) {
  if (scale.kind === "count") return value > 0 ? NONFINITE : NORMAL;
  if (Number.isNaN(value) || value === -Infinity) return NONFINITE;
  if (value === Infinity) return scale.kind === "bits" ? NORMAL : NONFINITE;
  if (scale.kind === "ratio") return Math.log10(value) > scale.high ? OVER : Math.log10(value) < scale.low ? UNDER : NORMAL;
  return scale.kind === "bits" && value < 0 ? OVER : NORMAL;
}

/**
 * Colours and classes of many cells.
 * @param {Scale} scale @param {Palette} palette @param {Uint32Array} bits float32 bit patterns
 * @returns {{ colours: Uint32Array, classes: Uint8Array }}
 */
export function paint(scale, palette, bits) {
  const values = new Float32Array(bits.buffer, bits.byteOffset, bits.length);
  const colours = new Uint32Array(bits.length);
  const classes = new Uint8Array(bits.length);
  for (let i = 0; i < bits.length; i++) {
    if (bits[i] === MISSING_BITS) {
      classes[i] = MISSING;
      colours[i] = palette.missing;
      continue;
    }
    const value = /** @type {number} */ (values[i]);
    const kind = classify(scale, value);
    classes[i] = kind;
    colours[i] = kind === NONFINITE ? palette.mark : colour(scale, palette, value);
  }
  return { colours, classes };
}

/** @param {Scale} scale @param {Palette} palette @param {number} value not a non-finite one @returns {number} */
export function colour(scale, palette, value) {
  if (classify(scale, value) === UNDER) return palette.negative.at(-1) ?? palette.missing;
  const at = position(scale, value);
  const line = at > 1 ? palette.over : scale.kind !== "signed" ? palette.safe : value < 0 ? palette.negative : palette.positive;
  return line[Math.round((at > 1 ? at - 1 : at) * (line.length - 1))] ?? palette.missing;
}

/**
 * Values to label on the legend.
 * @param {Scale} scale @returns {number[]}
 */
export function legendTicks(scale) {
  if (scale.kind === "bits") {
    const step = scale.low / 4;
    return [-scale.beyond, 0, step, 2 * step, 3 * step, scale.low];
  }
  if (scale.kind === "share") return [0.001, 0.01, 0.1, 1];
  if (scale.kind === "signed") return [-scale.high, 0, scale.high];
  if (scale.kind === "count") return [0, 1];
  if (scale.kind === "ratio") {
    const [first, last] = [Math.round(scale.low), Math.round(scale.high)];
    const every = Math.max(1, Math.ceil((last - first) / 4));
    const powers = Array.from({ length: Math.floor((last - first) / every) }, (_, i) => first + i * every);
    return [...powers, last].map((power) => Number(`1e${power}`));
  }
  const step = Math.max(2, Math.ceil((scale.high - scale.low) / 4 / 2) * 2);
  const ticks = [];
  for (let x = scale.low; x <= scale.high; x += step) ticks.push(2 ** x);
  return ticks;
}
