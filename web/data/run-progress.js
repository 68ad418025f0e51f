/** How far a run is, how long it will take yet, and on what and in which precision it computes. */

/** @typedef {import("./types.js").RunItem} RunItem */

/** Formats that fulfil each declared precision. @type {Readonly<Record<string, readonly string[]>>} */
const FAMILIES = { fp8: ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"], bf16: ["bf16"], fp16: ["fp16"], fp32: ["fp32"] };

/** Of the steps that the trainer is to make, the share that is done; null where nobody said how many. @param {RunItem} run */
export function shareDone(run) {
  return run.max_steps === null ? null : Math.min(1, run.steps / run.max_steps);
}

/**
 * Seconds until the last step, if the run goes on as in the stretch that `run.pace` covers. Null where there is no plan, no pace, nothing left, or no
 * step comes at the moment.
 * @param {RunItem} run @param {boolean} silent whether its agent has not been heard of lately
 */
export function secondsLeft(run, silent) {
  if (run.state !== "live" || silent || run.max_steps === null || run.pace === null || run.steps >= run.max_steps) return null;
  return (run.max_steps - run.steps) * run.pace.seconds_per_step;
}

/** Two figures at most: an estimate has no more. @param {number} seconds */
export function roughly(seconds) {
  const minutes = Math.round(seconds / 60);
  if (minutes < 1) return "<1m";
  if (minutes < 60) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours}h ${String(minutes % 60).padStart(2, "0")}m`;
  const whole = Math.round(minutes / 60);
  return `${Math.floor(whole / 24)}d ${String(whole % 24).padStart(2, "0")}h`;
}

/** Seconds from the start to the end, or to now. @param {RunItem} run @param {number} now milliseconds of the server's clock @returns {number | null} */
export function lasted(run, now) {
  const started = Date.parse(run.started_at ?? "");
  const end = run.finished_at !== null ? Date.parse(run.finished_at) : run.state === "live" ? now : Date.parse(run.heartbeat_at ?? "");
  return Number.isNaN(end - started) ? null : (end - started) / 1000;
}

/** "fp8", "bf16", "fp16" or "fp32": the narrowest declared word that what was executed fulfils; else that of most layers. "": not known. @param {RunItem} run */
export function executedFamily({ precision: { executed } }) {
  const formats = Object.keys(executed);
  const family = Object.entries(FAMILIES).find(([, members]) => members.some((format) => formats.includes(format)));
  if (family?.[0] === "fp8") return "fp8";
  const most = formats.reduce((best, format) => ((executed[format] ?? 0) > (executed[best] ?? 0) ? format : best), formats[0] ?? "");
  return Object.entries(FAMILIES).find(([, members]) => members.includes(most))?.[0] ?? most;
}

/** What a list says of it in one word: as executed, else as declared. @param {RunItem} run */
export const precisionWord = (run) => executedFamily(run) || (run.precision.declared ?? "");

/** "AMD Instinct MI300X" -> "MI300X": vendors' names repeat what the rest says. @param {string} name */
export function chipWord(name) {
  return name.replace(/^(AMD|NVIDIA)\s+/i, "").replace(/^(Instinct|GeForce|Radeon)\s+/i, "").trim() || name;
}

/** All of one kind in nearly every run; else the one there are most of. @param {RunItem} run */
export const chipOf = (run) => run.chips[0]?.name ?? "";
