/** What a person has chosen on this browser. Where it keeps nothing for a page, by order or for want of room, a choice lasts as long as the page. */

/** @type {Map<string, string>} */
const chosen = new Map();

/** @param {string} name @returns {string | null} null: nothing was chosen */
export function kept(name) {
  const here = chosen.get(name);
  if (here !== undefined) return here;
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // even to ask is forbidden
  }
}

/** @param {string} name @param {string} value */
export function keep(name, value) {
  chosen.set(name, value);
  try {
    localStorage.setItem(name, value);
  } catch {
    // The page has it.
  }
}
