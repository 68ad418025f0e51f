/** What the agent costs its training, and whether it looks closer at the moment. */

import { number } from "./json.js";
import { fixed } from "./text.js";

/** @typedef {{ share: import("./json.js").JsonNumber, budget: import("./json.js").JsonNumber, limit: string }} Overhead shares of the step time */

/** Two digits are enough of a figure that is smoothed and moves. @param {number} share */
function short(share) {
  const scaled = share * 100;
  return `${fixed(scaled, scaled >= 9.95 ? 0 : scaled >= 0.095 || scaled === 0 ? 1 : 2)} %`;
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
  if (budget === 0) return { text: figures.share, title: t("cost.free", figures), over: false };
  const over = share > budget;
  const title = overhead.limit === "" ? t("cost.title", figures) : `${t("cost.title", figures)} ${t("cost.limit", { limit: overhead.limit })}`;
  return { text: t("cost.of", figures), title, over };
}

/** @param {boolean} before @param {readonly { kind: string, detail: Record<string, unknown> }[]} events in the order of their steps */
export function looksCloser(before, events) {
  const last = events.filter(({ kind }) => kind === "focus").at(-1);
  return last === undefined ? before : last.detail["state"] === "begin";
}
