/** Rules as they are set, as they are being changed, and what the server says of it. */

/** @typedef {import("./types.js").Rule} Rule */
/** @typedef {import("./types.js").Changes} Changes */
/** @typedef {import("./types.js").RuleSettings} RuleSettings */

/** In force, as set here, and what the presets change. @typedef {{ run: string, rules: Rule[], settings: RuleSettings, presets: Record<string, Changes>, base: Rule[] }} RuleBook base: what holds where nothing is set here */

/** @param {readonly Rule[]} rules @returns {string[]} the kinds of alerts there are */
export const kindsOf = (rules) => rules.map((rule) => rule.kind);
