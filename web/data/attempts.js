/** A run that starts again begins a new attempt, whose steps take the place of those made before. */

/** @typedef {Pick<import("./health.js").Alert, "attempt" | "opened_at" | "first_step">} Placed an alert, or what else has a step of an attempt */
/** @typedef {{ n: number, first_step: number | null, started_at: string, config?: Record<string, unknown> | null }} Attempt config: null where it is the run's */

/**
 * The attempt in which an alert opened: as it says, else the newest one that had begun by then.
 * @param {Placed} alert @param {readonly Attempt[]} attempts ascending @returns {number | null} null: not known
 */
export function attemptOf(alert, attempts) {
  if (alert.attempt !== undefined) return alert.attempt;
  const opened = Date.parse(alert.opened_at ?? "");
  return attempts.findLast((attempt) => Date.parse(attempt.started_at) <= opened)?.n ?? null;
}

/**
 * Whether a later attempt made the alert's steps again: nothing that is drawn there is what it speaks of.
 * @param {Placed} alert @param {readonly Attempt[]} attempts
 */
export function overtaken(alert, attempts) {
  const own = attemptOf(alert, attempts);
  return own !== null && attempts.some((attempt) => attempt.n > own && attempt.first_step !== null && attempt.first_step <= alert.first_step);
}
