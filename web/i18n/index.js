/** The dictionary of a language as a function. */

import { fill } from "../data/words.js";

/** Nobody reads two languages at once: each comes on its own. @type {Partial<Record<import("../data/words.js").Language, Record<string, string>>>} */
const dictionaries = {};

/** Before anything is said in it. @param {import("../data/words.js").Language} language */
export async function learn(language) {
  dictionaries[language] ??= language === "zh" ? (await import("./zh.js")).zh : (await import("./en.js")).en;
}

/** @param {import("../data/words.js").Language} language @returns {import("../data/words.js").Translate} */
export function translator(language) {
  const words = dictionaries[language] ?? {};
  return (key, figures = {}) => fill(words[key] ?? key, figures);
}
