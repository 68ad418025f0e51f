/** What the page of alerts shows, as the part of the address after `#/alerts`. */

export const TABS = ["alerts", "rules", "endpoints", "deliveries"];
export const STATES = ["open", "past", "all"];
export const SEVERITIES = /** @type {const} */ (["critical", "warning", "info"]);
export const ORDERS = ["newest", "severity", "kind", "run", "step"];
export const OUTCOMES = ["pending", "leased", "ok", "failed", "dead"];

/**
 * @typedef {object} Desk "" anywhere: any, or none
 * @property {string} tab one of TABS
 * @property {string} state one of STATES
 * @property {string} severity
 * @property {string} kind of alerts, or the rule that is open
 * @property {string} run whose alerts or rules
 * @property {string} order one of ORDERS
 * @property {string} alert id of the one that is open
 * @property {string} endpoint id of the one whose deliveries are shown, or that is being changed
 * @property {string} outcome of deliveries, one of OUTCOMES
 */

/** @type {Readonly<Desk>} */
export const DESK = Object.freeze({ tab: "alerts", state: "open", severity: "", kind: "", run: "", order: "newest", alert: "", endpoint: "", outcome: "" });

const FIELDS = /** @type {const} */ (["state", "severity", "kind", "run", "order", "alert", "endpoint", "outcome"]);
/** @type {Partial<Record<keyof Desk, readonly string[]>>} */
const KNOWN = { state: STATES, severity: SEVERITIES, order: ORDERS, outcome: OUTCOMES };

/** @param {string | undefined} tab @param {URLSearchParams} fields @returns {Desk} what it does not understand falls back */
export function parseDesk(tab, fields) {
  const desk = { ...DESK, tab: tab !== undefined && TABS.includes(tab) ? tab : DESK.tab };
  for (const name of FIELDS) {
    const value = fields.get(name);
    if (value === null || (KNOWN[name] && !KNOWN[name].includes(value))) continue;
    if ((name === "alert" || name === "endpoint") && !/^\d{1,18}$/.test(value)) continue;
    desk[name] = value;
  }
  return desk;
}

/** @param {Desk} desk @returns {string} with "#" */
export function formatDesk(desk) {
  const fields = new URLSearchParams();
  for (const name of FIELDS) if (desk[name] !== DESK[name]) fields.set(name, desk[name]);
  const query = fields.toString();
  return `#/alerts${desk.tab === DESK.tab ? "" : `/${desk.tab}`}${query ? `?${query}` : ""}`;
}
