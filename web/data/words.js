/** Words: which language, and figures put into sentences. */

/** @typedef {"en" | "zh"} Language */
/** @typedef {(key: string, figures?: Record<string, string>) => string} Translate */

/** @type {readonly Language[]} */
export const LANGUAGES = ["en", "zh"];

/**
 * "{n} {n|alert|alerts}": a figure by its name, and the word that goes with one or with any other number of things.
 * @param {string} text @param {Record<string, string>} figures @returns {string}
 */
export function fill(text, figures) {
  return text.replace(/\{(\w+)(?:\|([^|}]*)\|([^|}]*))?\}/g, (hole, name, one, many) => {
    const value = figures[name];
    if (value === undefined) return hole;
    return one === undefined ? value : value === "1" ? one : many;
  });
}

/**
 * @param {string | null} chosen what the person chose here before
 * @param {readonly string[]} wishes navigator.languages, first choice first
 * @returns {Language}
 */
export function languageFrom(chosen, wishes) {
  const isLanguage = (/** @type {string} */ name) => /** @type {readonly string[]} */ (LANGUAGES).includes(name);
  if (chosen !== null && isLanguage(chosen)) return /** @type {Language} */ (chosen);
  const wish = wishes.map((tag) => tag.toLowerCase().split("-")[0] ?? "").find(isLanguage);
  return /** @type {Language} */ (wish ?? "en");
}
