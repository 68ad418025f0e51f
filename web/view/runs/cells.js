/** What the cells of the list say of a run; the page of a run says some of it in the same way. */

import { number, numbers } from "../../data/json.js";
import { chipWord, executedFamily, lasted, roughly, secondsLeft, shareDone } from "../../data/run-progress.js";
import { bits, clock, count, duration, figure, fixed } from "../../data/text.js";
import { serverNow, silentSeconds } from "../../state.js";
import { h } from "../dom.js";
import { notFinite, severityMark, sparkline } from "../marks.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../data/types.js").RunItem} RunItem */
/** @typedef {import("../../main.js").Context} Context */

/** Steps count from 0. @param {RunItem} run */
export function newestStep(run) {
  return count(run.steps > 0 ? run.steps - 1 : null);
}

/** How near the limit: a word for style sheets. @param {number | undefined} headroom */
export function grade(headroom) {
  if (headroom === undefined) return "";
  return headroom < 0 || Number.isNaN(headroom) ? "over" : headroom < 1 ? "near" : "clear";
}

/** @param {RunItem} run @param {State} state @param {Context} context */
export function stateCell(run, state, { t }) {
  const silent = silentSeconds(state, run);
  return h("span", { class: `runstate state-${silent === null ? run.state : "stale"}` }, silent === null ? t(`state.${run.state}`) : t("runs.silent", { time: roughly(silent) }));
}

/** @param {RunItem} run @param {Context} context */
export function headroomCell(run, { t }) {
  const headroom = number(run.worst?.headroom);
  return [
    h("span", { class: `bits ${grade(headroom)}` }, bits(headroom), headroom === undefined ? null : h("span", { class: "unit" }, ` ${t("unit.bits")}`)),
    h("span", { class: "second layer", title: run.worst?.layer }, run.worst ? h("bdi", null, run.worst.layer) : ""),
  ];
}

/** Open alerts; where none is open, muted, those that were. @param {RunItem} run @param {Context["t"]} t */
export function alertCounts(run, t) {
  const open = tallies(run.alerts, t);
  if (open.length > 0) return open;
  const past = tallies(run.alerts_past, t);
  if (past.length === 0) return h("span", { class: "muted" }, t("alerts.none_open"));
  return h("span", { class: "muted past" }, past, t("alerts.resolved"));
}

/** @param {RunItem["alerts"]} alerts @param {Context["t"]} t */
function tallies(alerts, t) {
  const severities = /** @type {const} */ (["critical", "warning", "info"]);
  return severities
    .filter((severity) => alerts[severity] > 0)
    .map((severity) =>
      h("span", { class: `tally ${severity}`, title: t(`severity.${severity}`) }, severityMark(severity), alerts[severity], h("span", { class: "sr" }, t(`severity.${severity}`))),
    );
}

/** Steps done of those planned, and the time that is left; without a plan the pace. @param {RunItem} run @param {State} state @param {Context} context */
export function progressCell(run, state, { t }) {
  const share = shareDone(run);
  const left = secondsLeft(run, silentSeconds(state, run) !== null);
  const pace = run.pace && `${figure(run.pace.seconds_per_step)} s`;
  const why =
    left !== null && run.pace ? t("runs.left_how", { left: count((run.max_steps ?? 0) - run.steps), pace: pace ?? "", window: roughly(run.pace.seconds) }) : run.pace ? t("runs.pace_how", { window: roughly(run.pace.seconds) }) : undefined;
  const steps = run.max_steps === null ? [newestStep(run)] : [count(run.steps), h("span", { class: "unit" }, ` / ${count(run.max_steps)}`)];
  return [
    h("span", { class: "steps" }, steps),
    h(
      "span",
      { class: "second", title: why },
      share === null ? null : h("span", { class: "done", "aria-hidden": "true" }, h("span", { style: { width: `${(share * 100).toFixed(1)}%` } })),
      left !== null ? t("runs.left_in", { time: roughly(left) }) : share !== null ? `${doneText(share)} %` : run.state === "live" && pace ? t("runs.pace", { pace }) : "",
    ),
  ];
}

/** Nothing is all there before it is. @param {number} share */
function doneText(share) {
  const percent = share * 100;
  return percent < 10 ? fixed(Math.floor(percent * 10) / 10, 1) : String(Math.floor(percent));
}

/** @param {RunItem} run */
export function lossCell(run) {
  const losses = numbers(run.sparkline);
  return [h("span", { class: "trend" }, losses.length > 0 && !losses.some(Number.isFinite) ? notFinite(96, 26) : sparkline(losses, 96, 26)), h("span", { class: run.last.loss !== null && !Number.isFinite(number(run.last.loss)) ? "value over" : "value" }, figure(number(run.last.loss)))];
}

/** @param {RunItem} run */
export function chipCell(run) {
  const [most, ...others] = run.chips;
  if (!most) return h("span", { class: "muted" }, "\u2014");
  const many = most.count > 1 ? `${count(most.count)} \u00d7 ` : "";
  return h("span", { title: run.chips.map(({ name, count: n }) => `${n} \u00d7 ${name}`).join(", ") }, many, chipWord(most.name), others.length > 0 ? h("span", { class: "unit" }, ` +${others.length}`) : null);
}

/** What is executed; where that is not what was declared, what is missing. @param {RunItem} run @param {Context} context */
export function precisionCell(run, { t }) {
  const { declared, executed, unmet } = run.precision;
  const ran = executedFamily(run);
  const layers = Object.entries(executed).map(([format, n]) => t("runs.layers_in", { n: count(n), format })).join(", ");
  const title = [declared === null ? "" : t("runs.declared", { precision: declared }), layers].filter(Boolean).join("; ");
  if (ran === "") return declared === null ? "" : h("span", { class: "second muted" }, t("runs.declared", { precision: declared }));
  if (unmet === 0) return h("span", { class: "second precision", title }, ran);
  const wanted = declared !== null && declared !== ran ? t("runs.not_declared", { precision: declared }) : t("runs.not_fp8", { n: count(unmet) });
  return h("span", { class: "second precision unmet", title }, severityMark("warning"), `${ran}, ${wanted}`);
}

/** @param {RunItem} run @param {State} state @param {Context} context */
export function timeCell(run, state, { t }) {
  const started = run.started_at === null ? null : Date.parse(run.started_at);
  const seconds = lasted(run, serverNow(state));
  return [
    h("span", { class: "started" }, started === null ? "\u2014" : clock(started, state.now)),
    h("span", { class: "second" }, seconds === null ? "" : duration(seconds), run.attempt > 1 ? ` ${t("runs.attempts", { n: String(run.attempt) })}` : null),
  ];
}
