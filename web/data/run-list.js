/** Which runs of the list are shown, and which are picked for a comparison. */

/** As many as a comparison shows. */
export const MOST_PICKED = 8;

/**
 * @param {readonly import("./types.js").RunItem[]} runs @param {string} find words that must all be in the name, the state or the worst layer
 */
export function found(runs, find) {
  const words = find.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return runs.filter((run) => {
    const text = `${run.name} ${run.state} ${run.worst?.layer ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** @param {readonly string[]} picked @param {string} name @returns {string[]} with the name, or without it where it was there; the first ones go when there are too many */
export function toggled(picked, name) {
  return picked.includes(name) ? picked.filter((other) => other !== name) : [...picked, name].slice(-MOST_PICKED);
}
