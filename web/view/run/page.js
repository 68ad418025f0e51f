/** One run: how many bits are left, and beneath it a tab for each way to look at what happened. */

import { number } from "../../data/json.js";
import { cost } from "../../data/overhead.js";
import { RUN_TABS } from "../../data/tab-fields.js";
import { bits, clock, count, duration, figure, powerOfTwo } from "../../data/text.js";
import { currentRun, presentAttempt, serverNow, silentSeconds } from "../../state.js";
import { h } from "../dom.js";
import { meter } from "../meter.js";
import { empty, failure, loading, placed } from "../notes.js";
import { reportLink } from "../report-link.js";
import { grade, newestStep } from "../runs/cells.js";
import { layersTab } from "./layers.js";
import { overviewTab } from "./overview.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/types.js").RunItem} RunItem */

/** Those of the other tabs come on their own. @type {Record<string, import("../../places.js").View>} */
const VIEWS = { overview: overviewTab, layers: layersTab };

/** @param {State} state @param {Context} context */
export function runPage(state, context) {
  const { t, act } = context;
  const run = currentRun(state);
  if (!run) {
    if (state.detail.error) return failure(context, state.detail.error);
    if (state.runs.error) return failure(context, state.runs.error);
    return state.runs.data === null || state.detail.status === "loading" ? loading(context, t("what.run")) : empty(t("run.unknown", { run: state.route.run }), t("run.unknown_hint"));
  }
  return h(
    "article",
    { class: "run", "aria-label": run.name },
    head(run, state, context),
    h(
      "nav",
      { class: "tabs", "aria-label": t("run.tabs") },
      RUN_TABS.map((tab) => h("a", { key: tab, href: act.link({ tab, layer: null }), "aria-current": tab === state.route.tab ? "page" : undefined }, t(`tab.${tab}`))),
      reportLink(run.name, state.language, t),
    ),
    h("div", { key: state.route.tab, class: `tab tab-${state.route.tab}` }, VIEWS[state.route.tab]?.(state, context) ?? placed(t(`tab.${state.route.tab}`), state, context)),
  );
}

/** @param {RunItem} run @param {State} state @param {Context} context */
function head(run, state, { t, act }) {
  const { worst } = run;
  const headroom = number(worst?.headroom);
  const silent = silentSeconds(state, run);
  const { n, started } = presentAttempt(state, run);
  const ofAttempt = (/** @type {string} */ label) => (n === null ? label : `${label} \u00b7 ${t("run.attempt", { n: String(n) })}`);
  const end = run.finished_at !== null ? Date.parse(run.finished_at) : run.state === "live" ? serverNow(state) : Date.parse(run.heartbeat_at ?? "");
  const spent = cost(run.overhead, t);
  /** @type {[string, string, string, string?][]} */
  const readings = [
    [t("run.state"), silent === null ? t(`state.${run.state}`) : t("runs.silent", { time: duration(silent) }), `state-${silent === null ? run.state : "stale"}`],
    [t("runs.step"), newestStep(run), ""],
    [t("series.loss"), figure(number(run.last.loss)), ""],
    [t("series.grad_norm"), figure(number(run.last.grad_norm)), ""],
    [t("series.loss_scale"), powerOfTwo(number(run.last.loss_scale)), ""],
    [ofAttempt(t("runs.duration")), started === null || Number.isNaN(end) ? "\u2014" : duration((end - started) / 1000), ""],
    [ofAttempt(t("runs.started")), started === null ? "\u2014" : clock(started, state.now), "wide"],
    ...(spent === null ? [] : [/** @type {[string, string, string, string]} */ ([t("run.cost"), spent.text, spent.over ? "state-stale" : "", spent.title])]),
  ];
  return h(
    "section",
    { class: "head" },
    h(
      "div",
      { class: `hero ${grade(headroom)}` },
      h("h1", { class: "label" }, t("run.worst"), grade(headroom) === "over" ? ` \u00b7 ${t("run.over")}` : grade(headroom) === "near" ? ` \u00b7 ${t("run.near")}` : ""),
      h("p", { class: "bignumber" }, bits(headroom), h("span", { class: "unit" }, t("unit.bits"))),
      worst
        ? h(
            "p",
            { class: "whence" },
            h("a", { href: act.link({ layer: worst.layer, kind: worst.kind, step: worst.step }), title: worst.layer }, h("bdi", null, worst.layer)),
            h("span", { class: "muted" }, `${t(`kind.${worst.kind}`)} \u00b7 ${t("at_step", { step: count(worst.step) })}`),
          )
        : h("p", { class: "whence muted" }, t("run.no_headroom")),
    ),
    meter(state, headroom, t),
    h("dl", { class: "readings" }, readings.map(([label, value, className, title]) => h("div", { class: className, title }, h("dt", null, label), h("dd", null, value, title === undefined ? null : h("span", { class: "sr" }, ` ${title}`))))),
  );
}
