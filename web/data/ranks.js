/** What the ranks of a run do not agree on, and which of them are missing. */

/** @typedef {{ kind: string, step: number, rank?: number, detail: Record<string, unknown> }} Disagreement */
/** @typedef {{ key: string, severity: import("./health.js").Severity, figures: Record<string, string> }} RankNote */

/** Kinds of events that say so. */
export const DISAGREEMENTS = ["norm_mismatch", "replicas_differ", "layer_apart"];

/** Ranks that are named; the rest is counted. */
const NAMED = 8;

/** Disagreements that are held. */
const NEWEST = 64;

/**
 * One note for each kind, about the newest of it; what concerns the numbers comes first.
 * @param {{ world?: number | undefined, missing_ranks?: number[] | undefined, ranks_disagree?: Disagreement[] | undefined }} run
 * @returns {RankNote[]}
 */
export function rankNotes({ world = 1, missing_ranks = [], ranks_disagree = [] }) {
  const newest = (/** @type {string} */ kind) => ranks_disagree.findLast((event) => event.kind === kind);
  /** @type {RankNote[]} */
  const notes = [];
  const differ = newest("replicas_differ");
  if (differ) {
    const { layer, layers, ranks } = differ.detail;
    notes.push({ key: "ranks.replicas_differ", severity: "critical", figures: { step: String(differ.step), layer: apartFrom(layer), layers: String(layers), ranks: String(ranks) } });
  }
  const mismatch = newest("norm_mismatch");
  if (mismatch) {
    notes.push({ key: "ranks.norm_mismatch", severity: "warning", figures: { step: String(mismatch.step), ours: short(mismatch.detail["ours"]), framework: short(mismatch.detail["framework"]) } });
  }
  if (missing_ranks.length > 0) {
    const named = missing_ranks.slice(0, NAMED).join(", ") + (missing_ranks.length > NAMED ? ", ..." : "");
    notes.push({ key: "ranks.missing", severity: "warning", figures: { ranks: named, world: String(world) } });
  }
  const apart = newest("layer_apart");
  if (apart) notes.push({ key: "ranks.layer_apart", severity: "info", figures: { layer: apartFrom(apart.detail["layer"]), name: apartFrom(apart.detail["name"]) } });
  return notes;
}

/** A name whose own direction of writing leaves the sentence around it as it is (U+2068, U+2069). @param {unknown} name */
function apartFrom(name) {
  return `\u2068${String(name)}\u2069`;
}

/**
 * What has come while the page is open, added to what was known; a server keeps as many.
 * @param {readonly Disagreement[] | undefined} known @param {readonly Disagreement[]} told @returns {Disagreement[]}
 */
export function withDisagreements(known, told) {
  return [...(known ?? []), ...told].slice(-NEWEST);
}

/** @param {unknown} value */
function short(value) {
  return typeof value === "number" ? value.toPrecision(4) : String(value);
}
