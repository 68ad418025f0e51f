/** What the agent costs its training, and whether it looks closer at the moment. */

import { number } from "./json.js";
import { fixed } from "./text.js";

/** @typedef {{ share: import("./json.js").JsonNumber, budget: import("./json.js").JsonNumber, limit: string, every?: Record<string, number> }} Overhead shares of the step time, and steps between two readings of a kind */

const READINGS = ["gradients", "activations", "weights", "updates", "histograms"];

/** Two digits are enough of a figure that is smoothed and moves. @param {number} share */
function short(share) {
  const scaled = share * 100;
  return `${fixed(scaled, scaled >= 9.95 ? 0 : scaled >= 0.095 || scaled === 0 ? 1 : 2)} %`;
}

/** What is read how often, as a sentence; empty where nobody said. @param {Overhead} overhead @param {import("./words.js").Translate} t */
function intervals({ every = {} }, t) {
  const parts = READINGS.flatMap((kind) => {
    const n = every[kind];
    if (!n) return [];
    const what = t(`reading.${kind}`);
    return [n === 1 ? t("cost.each", { what }) : t("cost.every", { what, n: String(n) })];
  });
  return parts.length === 0 ? "" : t("cost.intervals", { list: parts.join(t("cost.comma")) });
}

/**
 * @param {Overhead | null | undefined} overhead @param {import("./words.js").Translate} t
 * @returns {{ text: string, title: string, over: boolean } | null} null before the agent has said so
 */
export function cost(overhead, t) {
  const share = number(overhead?.share);
  const budget = number(overhead?.budget);
  if (!overhead || share === undefined || budget === undefined) return null;
  const figures = { share: short(share), budget: `${Number((budget * 100).toPrecision(3))} %` };
  const often = intervals(overhead, t);
  const said = (/** @type {string[]} */ ...sentences) => sentences.filter((sentence) => sentence !== "").join(" ");
  if (budget === 0) return { text: figures.share, title: said(t("cost.free", figures), often), over: false };
  const over = share > budget;
  const title = said(t("cost.title", figures), overhead.limit === "" ? "" : t("cost.limit", { limit: overhead.limit }), often);
  return { text: t("cost.of", figures), title, over };
}

/** @param {boolean} before @param {readonly { kind: string, detail: Record<string, unknown> }[]} events in the order of their steps */
export function looksCloser(before, events) {
  const last = events.filter(({ kind }) => kind === "focus").at(-1);
  return last === undefined ? before : last.detail["state"] === "begin";
}
