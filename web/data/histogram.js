/**
 * Exponent histograms over steps. Bin i counts magnitudes in (edge(i), edge(i + 1)], edge(i) being the float32 with the
 * bits i << 22: two bins an octave, from 2^k to 1.5 * 2^k and from there to 2^(k + 1).
 */

/** @typedef {{ first_step: number, steps: number, first: number, counts: number[] }} HistogramColumn */
/** @typedef {{ kind: string, layer: string, first_bin: number, columns: HistogramColumn[] }} HistogramAnswer */

const BIAS = 127;

/** Bin whose lower edge is 2^exponent; between octaves the half-octave edge lies at half a bin pair. @param {number} log2 */
export function binOf(log2) {
  const octave = Math.floor(log2);
  const fraction = 2 ** (log2 - octave) - 1; // 0..1 within the octave, 0.5 at the half-octave edge
  return 2 * (octave + BIAS) + 2 * fraction;
}

/** @param {number} bin @returns {number} log2 of its lower edge */
export function edgeLog2(bin) {
  return Math.floor(bin / 2) - BIAS + (bin % 2 === 1 ? Math.log2(1.5) : 0);
}

/**
 * The occupied bins, both ends included.
 * @param {readonly HistogramColumn[]} columns
 * @returns {{ low: number, high: number } | null} null when nothing was counted
 */
export function occupied(columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const { first, counts } of columns) {
    counts.forEach((count, i) => {
      if (count === 0) return;
      low = Math.min(low, first + i);
      high = Math.max(high, first + i);
    });
  }
  return low <= high ? { low, high } : null;
}

/**
 * Share of each bin in its column.
 * @param {HistogramColumn} column @param {number} low @param {number} high both included
 * @returns {Float64Array} [high - low + 1], index 0 the lowest bin
 */
export function shares(column, low, high) {
  const out = new Float64Array(high - low + 1);
  const total = column.counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return out;
  column.counts.forEach((count, i) => {
    const at = column.first + i - low;
    if (at >= 0 && at < out.length) out[at] = count / total;
  });
  return out;
}

/**
 * At most `limit` columns for the screen, in their order. Histograms merge by adding, so nothing is lost but resolution.
 * @param {readonly HistogramColumn[]} columns ascending @param {number} limit
 * @returns {HistogramColumn[]}
 */
export function poolColumns(columns, limit) {
  const each = Math.ceil(columns.length / limit);
  if (each <= 1) return [...columns];
  return Array.from({ length: Math.ceil(columns.length / each) }, (_, i) => columns.slice(i * each, (i + 1) * each).reduce(merge));
}

/** @param {HistogramColumn} a @param {HistogramColumn} b later @returns {HistogramColumn} */
function merge(a, b) {
  const first = Math.min(a.first, b.first);
  const counts = new Array(Math.max(a.first + a.counts.length, b.first + b.counts.length) - first).fill(0);
  for (const part of [a, b]) part.counts.forEach((count, i) => (counts[part.first + i - first] += count));
  return { first_step: a.first_step, steps: b.first_step + b.steps - a.first_step, first, counts };
}

/**
 * The step before which each column is drawn: a sample stands until the next one, but not across a gap.
 * @param {readonly HistogramColumn[]} columns ascending @returns {number[]}
 */
export function columnEnds(columns) {
  const strides = columns.slice(1).map((column, i) => column.first_step - (columns[i]?.first_step ?? 0));
  const usual = [...strides].sort((a, b) => a - b)[strides.length >> 1] ?? 1;
  return columns.map(({ first_step, steps }, i) => first_step + Math.max(steps, Math.min(strides[i] ?? usual, 2 * usual)));
}
