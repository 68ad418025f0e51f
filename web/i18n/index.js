/** The dictionary of a language as a function. */

import { fill } from "../data/words.js";
import { en } from "./en.js";
import { zh } from "./zh.js";

/** @type {Record<import("../data/words.js").Language, Record<string, string>>} */
const dictionaries = { en, zh };

/** @param {import("../data/words.js").Language} language @returns {import("../data/words.js").Translate} */
export function translator(language) {
  const words = dictionaries[language];
  return (key, figures = {}) => fill(words[key] ?? key, figures);
}
