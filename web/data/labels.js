/** Text on canvases that keeps clear of other text. */

/**
 * Which labels on one line stay: each in turn, if it keeps clear of those before it. The important ones come first.
 * @param {readonly { at: number, width: number }[]} labels centre and width, in pixels @param {number} gap
 * @returns {boolean[]}
 */
export function clearOf(labels, gap) {
  /** @type {{ at: number, width: number }[]} */
  const placed = [];
  return labels.map((label) => {
    const free = placed.every((other) => Math.abs(other.at - label.at) >= (other.width + label.width) / 2 + gap);
    if (free) placed.push(label);
    return free;
  });
}

/**
 * Places one above the other, at least `gap` apart and inside [low, high], as near as possible to where they belong.
 * @param {readonly number[]} places ascending @param {number} gap @param {number} low @param {number} high
 * @returns {number[]}
 */
export function spread(places, gap, low, high) {
  const out = [...places];
  for (let i = 0; i < out.length; i++) out[i] = Math.max(out[i] ?? low, i === 0 ? low : (out[i - 1] ?? low) + gap);
  for (let i = out.length - 1; i >= 0; i--) out[i] = Math.min(out[i] ?? high, i === out.length - 1 ? high : (out[i + 1] ?? high) - gap);
  return out;
}
