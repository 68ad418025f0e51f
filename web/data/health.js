/** The health strip: what each family of rules said over the steps. */

import { KINDS } from "./route.js";

/** @typedef {"critical" | "warning" | "info"} Severity */
/**
 * @typedef {object} Alert
 * @property {string | number} id
 * @property {string} run
 * @property {string} kind
 * @property {Severity} severity
 * @property {string} state
 * @property {number} first_step
 * @property {number} last_step
 * @property {number | null} [since_step]
 * @property {string | null} layer
 * @property {number | null} rank
 * @property {string | number | null} device
 * @property {string | null} format
 * @property {string} reason
 * @property {string} message
 * @property {string} message_zh
 * @property {import("./json.js").JsonNumber} [value]
 * @property {import("./json.js").JsonNumber} [threshold] null: it had none to cross
 * @property {{ tensor?: string, layers?: string[] }} [detail] layers: the others it speaks of
 * @property {number} [attempt]
 * @property {string | null} [opened_at]
 * @property {string | null} [resolved_at]
 * @property {string | null} [resolved_reason]
 * @property {number} [hits]
 * @property {string | null} [acknowledged_at]
 */

/** @type {Record<Severity, number>} */
export const WEIGHT = { critical: 3, warning: 2, info: 1 };

/** Families in the order in which trouble usually travels, with the rule kinds of each. */
export const FAMILIES = /** @type {const} */ ({
  limits: ["limit_near", "limit_crossed", "scale_extreme", "format_mismatch", "precision_mismatch"],
  underflow: ["underflow", "dead_gradient", "update_ratio"],
  finite: ["nonfinite", "loss_zero"],
  scaler: ["loss_scale_collapse"],
  gradient: ["grad_norm_spike", "grad_norm_frozen", "stale_grad_norm", "clip_saturation"],
  loss: ["loss_spike", "loss_divergence", "loss_plateau", "lr_frozen"],
});

/** @typedef {keyof typeof FAMILIES | "system"} Family */

/** @param {string} kind @returns {Family} */
export function familyOf(kind) {
  for (const [family, kinds] of Object.entries(FAMILIES)) {
    if (/** @type {readonly string[]} */ (kinds).includes(kind)) return /** @type {Family} */ (family);
  }
  return "system";
}

/** @typedef {{ from: number, to: number, severity: Severity, count: number }} Stretch */
/** @typedef {{ family: Family, worst: Severity | null, open: number, stretches: Stretch[] }} Lane */

/**
 * One lane for each family; alerts that touch are joined and the worst severity of a stretch wins.
 * @param {readonly Alert[]} alerts @returns {Lane[]}
 */
export function lanes(alerts) {
  const families = /** @type {Family[]} */ ([...Object.keys(FAMILIES), "system"]);
  return families.map((family) => {
    const own = alerts.filter((alert) => familyOf(alert.kind) === family);
    const open = own.filter((alert) => alert.state !== "resolved");
    /** @type {Stretch[]} */
    const stretches = [];
    for (const alert of [...own].sort((a, b) => a.first_step - b.first_step)) {
      const before = stretches.findLast((stretch) => stretch.severity === alert.severity);
      if (before && alert.first_step <= before.to + 1) {
        before.to = Math.max(before.to, alert.last_step);
        before.count += 1;
      } else stretches.push({ from: alert.first_step, to: Math.max(alert.first_step, alert.last_step), severity: alert.severity, count: 1 });
    }
    // Drawn last is seen first.
    stretches.sort((a, b) => WEIGHT[a.severity] - WEIGHT[b.severity] || a.from - b.from);
    return { family, worst: worstSeverity(open), open: open.length, stretches };
  });
}

/** The kind of tensor an alert is about; null where it is about none, as with a loss or a card. @param {Alert} alert */
export function tensorOf({ detail }) {
  return detail?.tensor !== undefined && KINDS.includes(detail.tensor) ? detail.tensor : null;
}

/** @param {readonly Alert[]} alerts @returns {Severity | null} */
export function worstSeverity(alerts) {
  /** @type {Severity | null} */
  let worst = null;
  for (const { severity } of alerts) if (worst === null || WEIGHT[severity] > WEIGHT[worst]) worst = severity;
  return worst;
}

/** The critical alert that opened first: what follows is often only its consequence. @param {readonly Alert[]} alerts in the order of their opening */
export function firstCritical(alerts) {
  return alerts.filter(({ severity }) => severity === "critical").sort((a, b) => a.first_step - b.first_step)[0] ?? null;
}

/**
 * The first critical one; then what is open, what is acknowledged, what is resolved, each newest first.
 * @param {readonly Alert[]} alerts in the order of their opening @returns {Alert[]}
 */
export function ordered(alerts) {
  const first = firstCritical(alerts);
  const rank = (/** @type {Alert} */ alert) => (alert === first ? 3 : alert.state === "resolved" ? 0 : alert.acknowledged_at ? 1 : 2);
  return [...alerts].sort((a, b) => rank(b) - rank(a) || b.first_step - a.first_step || WEIGHT[b.severity] - WEIGHT[a.severity]);
}

/** @param {readonly Alert[]} alerts @param {Alert} alert @returns {Alert[]} with `alert` added or put in its place */
export function withAlert(alerts, alert) {
  return alerts.some((other) => other.id === alert.id) ? alerts.map((other) => (other.id === alert.id ? alert : other)) : [...alerts, alert];
}
