/** Marks of alerts on the upper edge of a chart, of checkpoints on the lower one. */

import { alertStep, alertWeight, marksOf, savedSteps } from "../data/chart-marks.js";
import { DESK } from "../data/desk-route.js";
import { RIGHT, gutterFor } from "../data/geometry.js";
import { count } from "../data/text.js";
import { alertsInView } from "../state.js";
import { h } from "./dom.js";
import { checkpointMark, severityMark } from "./marks.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../data/geometry.js").Range} Range */
/** @typedef {import("../data/health.js").Alert} Alert */
/** @typedef {import("../data/chart-marks.js").Saved} Saved */
/** @typedef {{ share: number, n: number, first: number, last: number, href: string, title: string }} Place */
/** @typedef {{ alerts: (Place & { at: Alert })[], saved: (Place & { at: Saved })[], sign: string }} Marks sign: another one whenever they change */

/** Column beside the traces on a wide screen, and what frames them. */
const [WIDE, SIDE, DRAWER, FRAME] = [1200, 336, 480, 16];

/** Steps beside those of a mark that a look at it shows, as a share of them. */
const ASIDE = 0.25;

/** Pixels of the common axis. @param {State} state */
function axisWidth({ width, route }) {
  const beside = width < WIDE ? 0 : route.layer === null ? SIDE : DRAWER;
  return Math.max(120, width - beside - FRAME - gutterFor(width) - RIGHT);
}

/** What happened in the range, the same for every chart. @param {State} state @param {Range} range @param {Context} context @returns {Marks} */
export function marksIn(state, range, context) {
  const { t, act } = context;
  const width = axisWidth(state);
  /** A look at the steps of several; null where no narrower look is left. @param {{ n: number, first: number, last: number }} mark */
  const closer = ({ n, first, last }) => {
    if (n === 1 || first === last) return null;
    const aside = Math.ceil((last - first) * ASIDE);
    const [from, to] = [Math.max(range.from, first - aside), Math.min(range.to, last + aside)];
    return to - from < range.to - range.from ? act.link({ from, to }) : null;
  };
  const alerts = marksOf(alertsInView(state), alertStep(range), range, width, alertWeight).map((mark) => {
    const many = mark.n > 1;
    const near = closer(mark);
    const one = act.link({ page: "alerts", desk: { ...DESK, alert: String(mark.at.id), state: "all" } });
    const severity = t(`severity.${mark.at.severity}`);
    return {
      ...mark,
      href: near ?? (many ? act.link({ page: "alerts", desk: { ...DESK, run: state.route.run, state: "all", order: "step" } }) : one),
      title: many ? `${t("marks.alerts", { n: count(mark.n), severity })}, ${stepsOf(mark, t)}. ${t(near === null ? "marks.list" : "marks.closer")}` : `${t(`alert.${mark.at.kind}`)} \u00b7 ${severity} \u00b7 ${stepsOf({ first: mark.at.first_step, last: Math.max(mark.at.first_step, mark.at.last_step) }, t)}. ${t("marks.alert")}`,
    };
  });
  const saved = marksOf(savedSteps(state.detail.data?.checkpoints ?? [], state.detail.data?.attempts ?? []), ({ step }) => step, range, width).map((mark) => ({
    ...mark,
    href: closer(mark) ?? act.link({ step: mark.at.step }),
    title: mark.n > 1 ? `${t("marks.checkpoints", { n: count(mark.n) })}, ${stepsOf(mark, t)}` : `${t("marks.checkpoint")} \u00b7 ${stepsOf(mark, t)} \u00b7 ${mark.at.paths.join(", ")}`,
  }));
  const sign = [...alerts.map(({ at, n }) => `${at.id}:${n}`), "", ...saved.map(({ first, n }) => `${first}:${n}`)].join();
  return { alerts, saved, sign };
}

/** @param {{ first: number, last: number }} mark @param {Context["t"]} t */
function stepsOf({ first, last }, t) {
  return first === last ? t("at_step", { step: count(first) }) : t("step_range", { from: count(first), to: count(last) });
}

/** For the pointer only: the list of alerts, and the health strip above, say the same to a keyboard and a reader. @param {Marks} marks */
export function rail({ alerts, saved }) {
  return h(
    "div",
    { class: "rail", "aria-hidden": "true", style: { "--right": `${RIGHT}px` } },
    alerts.map(({ at, n, share, href, title }) => h("a", { key: `a${at.id}`, class: `on-rail ${at.severity}`, href, title, tabindex: -1, style: { left: `${share * 100}%` } }, severityMark(at.severity, at.state === "resolved" || Boolean(at.acknowledged_at)), n > 1 ? h("span", null, count(n)) : null)),
    saved.map(({ first, n, share, href, title }) => h("a", { key: `c${first}`, class: "on-rail saved", href, title, tabindex: -1, style: { left: `${share * 100}%` } }, checkpointMark(), n > 1 ? h("span", null, count(n)) : null)),
  );
}
