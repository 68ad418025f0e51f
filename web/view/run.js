/** One run: how many bits are left, then everything that moved on one common axis of steps. */

import { PHONE, gutterFor } from "../data/geometry.js";
import { number } from "../data/json.js";
import { cost } from "../data/overhead.js";
import { bits, clock, count, duration, figure, powerOfTwo, sentences } from "../data/text.js";
import { currentRun, presentAttempt, silentSeconds, visibleRange, wayBack } from "../state.js";
import { alertList } from "./alerts.js";
import { charts } from "./charts.js";
import { devices } from "./devices.js";
import { h } from "./dom.js";
import { drawer } from "./drawer.js";
import { heat } from "./heat.js";
import { meter } from "./meter.js";
import { empty, failure, loading } from "./notes.js";
import { rankNotesOf } from "./rank-notes.js";
import { grade, newestStep } from "./runs.js";
import { strip } from "./strip.js";

/** What the button asks for. */
const CLOSER_STEPS = 100;

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../data/types.js").RunItem} RunItem */

/** @param {State} state @param {Context} context */
export function runPage(state, context) {
  const { t } = context;
  const run = currentRun(state);
  if (!run) {
    if (state.detail.error) return failure(context, state.detail.error);
    if (state.runs.error) return failure(context, state.runs.error);
    return state.runs.data === null || state.detail.status === "loading" ? loading(context, t("what.run")) : empty(t("run.unknown", { run: state.route.run }), t("run.unknown_hint"));
  }
  const range = visibleRange(state);
  return h(
    "article",
    { class: `run${state.route.layer === null ? "" : " with-drawer"}`, "aria-label": run.name },
    head(run, state, context),
    h(
      "div",
      { class: "bench" },
      h(
        "div",
        { class: "stack", style: { "--gutter": `${gutterFor(state.width)}px` } },
        range === null
          ? empty(t("run.no_steps"), t("run.no_steps_hint"))
          : [axisBar(state, range, context), strip(state, range, context), rankNotesOf(state, context), heat(state, range, context), charts(state, range, context)],
      ),
      state.route.layer === null ? h("div", { class: "side", key: "side" }, alertList(state, context), devices(state, context)) : drawer(state, context),
    ),
  );
}

/** @param {RunItem} run @param {State} state @param {Context} context */
function head(run, state, { t, act }) {
  const { worst } = run;
  const headroom = number(worst?.headroom);
  const silent = silentSeconds(state, run);
  const { n, started } = presentAttempt(state, run);
  const ofAttempt = (/** @type {string} */ label) => (n === null ? label : `${label} \u00b7 ${t("run.attempt", { n: String(n) })}`);
  const end = run.finished_at !== null ? Date.parse(run.finished_at) : run.state === "live" ? state.now + state.skew : Date.parse(run.heartbeat_at ?? "");
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

/** @param {State} state @param {Context["t"]} t @param {Context["act"]} act */
function closer(state, t, act) {
  if (state.session?.scope !== "admin" || currentRun(state)?.state !== "live") return null;
  if (state.closer) return h("span", { class: "muted", role: "status" }, t("run.closer_now"));
  const steps = { steps: String(CLOSER_STEPS) };
  return h("button", { type: "button", title: t("run.closer_title", steps), onclick: () => void act.lookCloser(CLOSER_STEPS) }, t("run.closer", steps));
}

/** The range that every trace shows. @param {State} state @param {import("../data/geometry.js").Range} range @param {Context} context */
function axisBar(state, range, { t, act }) {
  const { route } = state;
  const submit = (/** @type {Event} */ event) => {
    const form = /** @type {HTMLInputElement} */ (event.currentTarget).form;
    if (!form) return;
    const value = (/** @type {string} */ name) => {
      const text = /** @type {HTMLInputElement} */ (form.elements.namedItem(name)).value;
      return /^\d+$/.test(text) ? Number(text) : null;
    };
    act.navigate({ from: value("from"), to: value("to") });
  };
  // A growing run's axis ends a little ahead of its newest step.
  const newest = Math.max(range.from, (currentRun(state)?.steps ?? 1) - 1);
  const field = (/** @type {"from" | "to"} */ name) =>
    h("input", { name, inputmode: "numeric", pattern: "\\d*", "aria-label": t(`axis.${name}`), placeholder: String(name === "to" ? Math.min(range.to, newest) : range.from), value: route[name] === null ? "" : String(route[name]), onchange: submit });
  return h(
    "form",
    { class: "axisbar", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
    h("span", { class: "label" }, t("axis.steps")),
    field("from"),
    h("span", { "aria-hidden": "true" }, "\u2013"),
    field("to"),
    route.from !== null || route.to !== null
      ? h("button", { type: "button", onclick: () => act.navigate({ from: null, to: null }) }, t(wayBack(state)))
      : h("span", { class: "muted" }, state.width < PHONE ? t("axis.all") : t(currentRun(state)?.state === "live" ? "axis.hint" : "axis.hint_still")),
    closer(state, t, act),
    state.notice ? h("span", { class: "failed", role: "alert" }, sentences(state.notice.message || t("note.unreachable"), state.notice.hint)) : null,
  );
}
