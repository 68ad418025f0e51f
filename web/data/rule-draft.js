/** Rules as they are set, as they are being changed, and what the server says of it. */

import { familyOf } from "./health.js";

/** @typedef {import("./types.js").Rule} Rule */
/** @typedef {import("./types.js").RuleSettings} RuleSettings */
/** @typedef {Record<string, string>} Draft `preset`, `try` (a run), and `RULE.PARAMETER`: what was typed; "" is back to what the preset gives */
/** @typedef {{ run: string, rules: Rule[], settings: RuleSettings }} RuleBook run: "" for all */

/** The parameter that every rule has: 1, or 0 for one that raises no alert. */
export const ENABLED = "enabled";

/** One set of parameters, which several kinds may share. @typedef {{ rule: string, family: string, kinds: Rule[], parameters: string[] }} Entry */

/** @param {readonly Rule[]} rules @returns {string[]} the kinds of alerts there are */
export const kindsOf = (rules) => rules.map((rule) => rule.kind);

/** @param {readonly Rule[]} rules @returns {Entry[]} */
export function entries(rules) {
  /** @type {Map<string, Entry>} */
  const found = new Map();
  for (const rule of rules) {
    const entry = found.get(rule.rule) ?? { rule: rule.rule, family: familyOf(rule.kind), kinds: [], parameters: Object.keys(rule.parameters).filter((name) => name !== ENABLED) };
    entry.kinds.push(rule);
    found.set(rule.rule, entry);
  }
  return [...found.values()];
}

/** @param {RuleBook} book @param {Draft} draft @returns {string} "": that of all runs */
export function presetIn({ run, settings }, draft) {
  return draft["preset"] ?? settings.preset ?? (run === "" ? "default" : "");
}

/** What holds where nothing is set here but the preset. @param {RuleBook} book @param {Draft} draft @param {string} rule @param {string} name */
export function base(book, draft, rule, name) {
  return book.settings.levels[presetIn(book, draft)]?.[rule]?.[name];
}

/** What the field shows. @param {RuleBook} book @param {Draft} draft @param {string} rule @param {string} name @returns {{ text: string, own: boolean }} own: set here, whatever the preset */
export function shown(book, draft, rule, name) {
  const typed = draft[`${rule}.${name}`];
  const set = book.settings.parameters[rule]?.[name];
  if (typed === undefined ? set === undefined : typed === "") return { text: String(base(book, draft, rule, name) ?? ""), own: false };
  return { text: typed ?? String(set), own: true };
}

/** @param {RuleBook} book @param {Draft} draft @param {string} rule */
export const isOn = (book, draft, rule) => shown(book, draft, rule, ENABLED).text !== "0";

/** What the draft holds of a rule that is switched: nothing of its own where the preset says the same. @param {RuleBook} book @param {Draft} draft @param {string} rule @param {boolean} on */
export const switched = (book, draft, rule, on) => ((base(book, draft, rule, ENABLED) !== 0) === on ? "" : on ? "1" : "0");

/** @param {RuleBook} book @param {Draft} draft @returns {string[]} keys of the draft that differ from what is stored */
export function unsaved(book, draft) {
  return Object.entries(draft)
    .filter(([key, text]) => {
      if (key === "preset") return text !== presetIn(book, {});
      if (!key.includes(".")) return false;
      const [rule = "", name = ""] = key.split(".");
      const set = book.settings.parameters[rule]?.[name];
      return set === undefined ? text !== "" : text === "" || Number(text) !== set;
    })
    .map(([key]) => key);
}

/**
 * The whole of what is to be set. What is no number goes as it was typed: the server says what is wrong with it.
 * @param {RuleBook} book @param {Draft} draft @returns {{ preset: string | null, parameters: Record<string, Record<string, number | string>> }}
 */
export function wanted(book, draft) {
  /** @type {Record<string, Record<string, number | string>>} */
  const parameters = Object.fromEntries(Object.entries(book.settings.parameters).map(([rule, values]) => [rule, { ...values }]));
  for (const [key, text] of Object.entries(draft)) {
    const [rule = "", name = ""] = key.split(".");
    if (!key.includes(".")) continue;
    const values = (parameters[rule] ??= {});
    if (text === "") delete values[name];
    else values[name] = text.trim() === "" || !Number.isFinite(Number(text)) ? text : Number(text);
    if (Object.keys(values).length === 0) delete parameters[rule];
  }
  return { preset: presetIn(book, draft) || null, parameters };
}

/** The parameter that a message of the server is about, as `RULE.PARAMETER`. @param {string} message @param {readonly Entry[]} all */
export function blamed(message, all) {
  for (const { rule, parameters } of all) for (const name of parameters) if (new RegExp(`\\b${rule}\\.${name}\\b`).test(message)) return `${rule}.${name}`;
  return null;
}
