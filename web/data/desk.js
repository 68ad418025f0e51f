/** The page of alerts: what it holds, and which of it is shown in which order. */

import { WEIGHT } from "./health.js";

/** @typedef {import("./types.js").RunItem} RunItem */
/** @typedef {import("./types.js").Change} Change */
/** @typedef {import("./health.js").Alert} Alert */
/** @typedef {import("./health.js").Severity} Severity */
/** @typedef {import("./desk-route.js").Desk} Desk */
/** @template T @typedef {import("../state.js").Load<T>} Load */

/**
 * @typedef {object} DeskState
 * @property {Load<Alert[]>} alerts of all runs, newest first
 * @property {Load<import("./types.js").Silence[]>} silences
 * @property {Load<Change[]>} audit who did what; of an administrator only
 * @property {Load<import("./types.js").Endpoint[]>} endpoints
 * @property {Load<{ types: import("./types.js").EndpointType[], kinds: string[] }>} receivers the types of endpoints, and what they may be told of
 * @property {Load<import("./types.js").Delivery[]>} deliveries
 * @property {Load<import("./rule-draft.js").RuleBook>} rules
 * @property {{ run: string, answer: import("./types.js").Preview } | null} preview
 * @property {number} shown rows of the list
 * @property {string} asked the form or question that is open, "" for none
 * @property {Record<string, string>} draft what was typed into it
 * @property {string} busy the action under way
 * @property {{ of: string, error: import("../api.js").ApiError } | null} refused what an action came back with
 * @property {{ endpoint: number, secret: string } | null} secret shown once, kept nowhere else
 * @property {Record<number, number>} tests endpoint -> its newest test's delivery
 */

export const PAGE_ROWS = 200;

/** @type {Load<any>} */
const NOTHING = { status: "idle", data: null, error: null };

/** @type {Readonly<DeskState>} */
export const EMPTY_DESK = Object.freeze({
  alerts: NOTHING,
  silences: NOTHING,
  audit: NOTHING,
  endpoints: NOTHING,
  receivers: NOTHING,
  deliveries: NOTHING,
  rules: NOTHING,
  preview: null,
  shown: PAGE_ROWS,
  asked: "",
  draft: {},
  busy: "",
  refused: null,
  secret: null,
  tests: {},
});

/** Open ones of all runs and their worst severity. @param {readonly RunItem[]} runs @returns {{ open: number, worst: Severity | null }} */
export function openTally(runs) {
  const of = (/** @type {Severity} */ severity) => runs.reduce((sum, run) => sum + run.alerts[severity], 0);
  const worst = of("critical") > 0 ? "critical" : of("warning") > 0 ? "warning" : of("info") > 0 ? "info" : null;
  return { open: of("critical") + of("warning") + of("info"), worst };
}

/** An alert that gained severity went on as another one, which is listed in its place. @param {Alert} alert */
const wentOn = (alert) => alert.resolved_reason === "superseded";

/** @type {Record<string, (alert: Alert) => boolean>} */
const IN_STATE = { open: (alert) => alert.state !== "resolved", past: (alert) => alert.state === "resolved", all: () => true };

/** @type {Record<string, (a: Alert, b: Alert) => number>} */
const ORDER = {
  newest: () => 0,
  severity: (a, b) => WEIGHT[b.severity] - WEIGHT[a.severity],
  kind: (a, b) => a.kind.localeCompare(b.kind),
  run: (a, b) => a.run.localeCompare(b.run),
  step: (a, b) => b.first_step - a.first_step,
};

/** Without the state's own filter, for what each state would hold. @param {readonly Alert[]} alerts @param {Desk} desk */
function chosen(alerts, { severity, kind, run }) {
  return alerts.filter((alert) => !wentOn(alert) && (severity === "" || alert.severity === severity) && (kind === "" || alert.kind === kind) && (run === "" || alert.run === run));
}

/** @param {readonly Alert[]} alerts @param {Desk} desk @returns {Alert[]} those asked for, in the order asked for; newest first among equals */
export function alertsShown(alerts, desk) {
  const kept = chosen(alerts, desk).filter(IN_STATE[desk.state] ?? (() => true));
  return kept.sort((a, b) => (ORDER[desk.order]?.(a, b) ?? 0) || Number(b.id) - Number(a.id));
}

/** @param {readonly Alert[]} alerts @param {Desk} desk @returns {Record<string, number>} how many each state would show */
export function perState(alerts, desk) {
  const all = chosen(alerts, desk);
  const open = all.filter((alert) => alert.state !== "resolved").length;
  return { open, past: all.length - open, all: all.length };
}

/** What a list may be narrowed to: what it holds, and what is chosen. @param {readonly string[]} held @param {string} choice @returns {string[]} */
export function choices(held, choice) {
  return [...new Set(choice === "" ? held : [...held, choice])].sort((a, b) => a.localeCompare(b));
}

/** Who did it, as the audit log names them; null where it does not say. @param {readonly Change[] | null} audit newest first @param {string} action @param {string | number} subject */
export function whoDid(audit, action, subject) {
  return audit?.find((change) => change.action === action && change.subject === String(subject))?.actor ?? null;
}

/** Whether a silence covers an alert. @param {import("./types.js").Silence} silence @param {Alert} alert @param {number} now server's milliseconds */
export function covers(silence, alert, now) {
  const same = (/** @type {"run" | "kind" | "layer"} */ name) => silence[name] === null || silence[name] === alert[name];
  return Date.parse(silence.until) > now && same("run") && same("kind") && same("layer");
}

/** The newest first, each once; what is open is complete, what is past reaches back as far as the answer. @param {readonly Alert[]} open @param {readonly Alert[]} past */
export function together(open, past) {
  const known = new Map([...past, ...open].map((alert) => [alert.id, alert]));
  return [...known.values()].sort((a, b) => Number(b.id) - Number(a.id));
}

/** @param {Alert} alert @returns {readonly string[]} layers that it was seen in beside the one that it names */
export function otherLayers(alert) {
  return (alert.detail?.layers ?? []).filter((name) => name !== alert.layer);
}
