/** Answers to questions that were asked before the modules were there that want to know. */

export const BLOCK = "application/vnd.floatscope.block";
export const JSON_TYPE = "application/json";

/** An answer that nobody wanted so long is not what the server would say now: who went elsewhere and comes back asks. */
const FRESH_MS = 10_000;

/** @type {Map<string, { answer: Promise<Response | null>, at: number }>} */
const asked = new Map();

/** What the page asked for before it was asked early; null: nothing more will be. @type {Set<string> | null} */
let missed = new Set();

/** As every request of the page. @param {string} accept @returns {RequestInit} */
export function initOf(accept) {
  return { headers: { Accept: accept }, credentials: "same-origin", cache: "no-store" };
}

/**
 * @param {string} path @param {string} accept @param {Promise<boolean>} [wanted] whether to ask at all; who wants the answer waits for it
 * @returns {Promise<Response | null>} null: there is none
 */
export async function askEarly(path, accept, wanted) {
  // The modules may be there before what a question follows from is: the page has asked it then.
  if (missed?.has(path)) return null;
  // A refusal is asked for again: who signs in meanwhile gets another answer.
  const asking = wanted === undefined ? fetch(path, initOf(accept)) : wanted.then((is) => (is ? fetch(path, initOf(accept)) : null));
  const answer = asking.then((response) => (response?.ok ? response : null), () => null);
  asked.set(path, { answer, at: performance.now() });
  return answer;
}

/** Everything that is asked early has been. */
export function askedAll() {
  missed = null;
}

/** The answer to a question that has been asked already, once. @param {string} path @returns {Promise<Response | null>} null: ask */
export async function early(path) {
  const held = asked.get(path);
  asked.delete(path);
  if (held === undefined) missed?.add(path);
  return held === undefined || performance.now() - held.at > FRESH_MS ? null : held.answer;
}
