/** Runs over one another, and layer by layer. */

import { COLOURS, MOST_RUNS, STROKES, allNamesIn, along, listOf, namesIn, smoothed } from "../../data/compare.js";
import { HOME } from "../../data/route.js";
import { number } from "../../data/json.js";
import { count, figure } from "../../data/text.js";
import { choice } from "../desk/controls.js";
import { h } from "../dom.js";
import { empty, pendingNote } from "../notes.js";
import { pngButton } from "../png.js";
import { layersApart } from "./apart.js";
import { createOverlay } from "./plot.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../state.js").Curves} Curves */
/** @typedef {import("../../main.js").Context} Context */

const CHARTS = /** @type {const} */ ([{ name: "loss", axis: "linear" }, { name: "grad_norm", axis: "log" }, { name: "loss_scale", axis: "log2" }, { name: "lr", axis: "linear" }]);

/** Runs left out that are named. */
const NAMED = 3;

/** @param {State} state @param {Context} context */
export function comparePage(state, context) {
  const { t } = context;
  const names = namesIn(state.route.own["runs"] ?? "");
  const note = names.length < 2 ? null : pendingNote(context, state.compare.curves, t("what.compare"));
  const curves = state.compare.curves.data ?? [];
  return h(
    "article",
    { class: "compare", "aria-labelledby": "compare-title" },
    h("h1", { id: "compare-title", class: "sr" }, t("compare.title")),
    legend(names, curves, state, context),
    leftOut(state, context),
    names.length < 2 ? empty(t("compare.few"), t("compare.few_hint")) : note ?? [bar(curves, state, context), h("div", { class: "overlays" }, CHARTS.map((chart) => overlay(chart, names, curves, state, context))), layersApart(state, context)],
  );
}

/** More are asked for than can be told apart. @param {State} state @param {Context} context */
function leftOut({ route }, { t }) {
  const more = allNamesIn(route.own["runs"] ?? "").slice(MOST_RUNS);
  return more.length === 0 ? null : h("p", { class: "failed", role: "status" }, t("compare.too_many", { most: count(MOST_RUNS), n: count(more.length), runs: more.slice(0, NAMED).join(" \u00b7 ") + (more.length > NAMED ? " \u2026" : "") }));
}

/** @param {string[]} names @param {readonly Curves[]} curves @param {State} state @param {Context} context */
function legend(names, curves, state, { t, act }) {
  const { route } = state;
  const known = state.runs.data ?? [];
  const go = (/** @type {string[]} */ next) => act.link({ own: { ...route.own, runs: listOf(next), a: "", b: "" } });
  const add = (/** @type {Event} */ event) => {
    const input = /** @type {HTMLInputElement} */ (event.currentTarget);
    const name = input.value;
    if (!known.some((run) => run.name === name) || names.includes(name)) return;
    input.value = "";
    location.hash = go([...names, name]);
  };
  return h(
    "ol",
    { class: "compare-runs" },
    names.map((name, place) => {
      const run = known.find((one) => one.name === name);
      const gone = state.runs.data !== null && !run && (curves.find((one) => one.name === name)?.gone ?? true);
      return h(
        "li",
        { key: name },
        h("svg", { class: "sample", viewBox: "0 0 36 8", width: 36, height: 8, "aria-hidden": "true" }, h("line", { x1: 0, x2: 36, y1: 4, y2: 4, "stroke-width": 2, stroke: COLOURS[state.theme]?.[place], "stroke-dasharray": STROKES[place] })),
        h("a", { href: act.link({ ...HOME, page: "run", run: name }), title: name }, h("bdi", null, name)),
        gone ? h("span", { class: "failed" }, t("compare.gone")) : run ? h("span", { class: "muted" }, `${t(`state.${run.state}`)} \u00b7 ${t("runs.step")} ${count(run.steps - 1)} \u00b7 ${t("series.loss")} ${figure(number(run.last.loss))}`) : null,
        h("a", { class: "clear", href: go(names.filter((one) => one !== name)), "aria-label": t("compare.remove", { run: name }) }, "\u00d7"),
      );
    }),
    names.length >= MOST_RUNS
      ? null
      : h("li", { key: "+" }, h("label", { class: "select" }, h("span", { class: "label" }, t("compare.add")), h("input", { list: "compare-known", spellcheck: "false", autocomplete: "off", onchange: add }), h("datalist", { id: "compare-known" }, known.filter((run) => !names.includes(run.name)).map((run) => h("option", { key: run.name, value: run.name }))))),
  );
}

/** @param {readonly Curves[]} curves @param {State} state @param {Context} context */
function bar(curves, state, { t, act }) {
  const { own, from, to } = state.route;
  const missing = curves.filter((run) => !run.gone && along(run.series, own["x"] ?? "") === null).map((run) => run.name);
  return h(
    "div",
    { class: "filters", role: "group", "aria-label": t("compare.title") },
    // A stretch of one axis means nothing on another.
    choice(t("compare.x"), own["x"] ?? "", [["", t("compare.x_step")], ["tokens", t("compare.x_tokens")], ["time", t("compare.x_time")]], (x) => act.navigate({ from: null, to: null, own: { ...own, x } })),
    choice(t("compare.smooth"), own["smooth"] ?? "", [["", t("compare.smooth_none")], ...["10", "50"].map((n) => /** @type {const} */ ([n, t("compare.smooth_n", { n })]))], (smooth) => act.navigate({ own: { ...own, smooth } })),
    own["smooth"] ? h("span", { class: "muted" }, t("compare.smooth_how")) : null,
    from !== null || to !== null ? h("button", { type: "button", onclick: () => act.navigate({ from: null, to: null }) }, t("compare.whole")) : h("span", { class: "muted" }, t("compare.hint")),
    missing.length === 0 ? null : h("span", { class: "failed", role: "status" }, t("compare.not_recorded", { runs: missing.join(" \u00b7 ") })),
  );
}

/** @param {typeof CHARTS[number]} chart @param {string[]} names @param {readonly Curves[]} runs @param {State} state @param {Context} context */
function overlay({ name, axis }, names, runs, state, { t, act }) {
  const { own, from, to } = state.route;
  const x = own["x"] ?? "";
  const title = t(`series.${name}`);
  /** @type {string[]} */
  const broken = [];
  /** @type {import("./plot.js").OverlayData["marks"]} */
  const marks = [];
  const curves = runs.flatMap((run) => {
    const [series, at] = [run.series.get(name), along(run.series, x)];
    const place = names.indexOf(run.name);
    if (!series || series.steps.length === 0 || at === null || place < 0) return [];
    if (!series.values.some(Number.isFinite)) return (broken.push(run.name), []);
    if (name === "loss") for (const alert of run.alerts) if (Number.isFinite(at(alert.first_step))) marks.push({ place, x: at(alert.first_step), severity: alert.severity });
    const finite = (/** @type {number[]} */ values) => values.map((value) => (Number.isFinite(value) ? value : NaN));
    return [{ name: run.name, place, x: series.steps.map((step) => at(step + (series.cell - 1) / 2)), raw: finite(series.values), smooth: own["smooth"] ? smoothed(series, Number(own["smooth"])) : null }];
  });
  return h(
    "section",
    { key: name, class: "pictured", "aria-label": title },
    h("h2", null, title, broken.length === 0 ? null : h("span", { class: "failed" }, ` ${t("compare.not_finite", { runs: broken.join(" \u00b7 ") })}`)),
    curves.length === 0 || !state.plotly
      ? null
      : pngButton(state, null, title, t(`compare.x_${x || "step"}`), t, {
          subject: t("compare.title"),
          key: curves.map((curve) => ({ text: curve.name, color: COLOURS[state.theme]?.[curve.place] ?? "", dash: (STROKES[curve.place] ?? "").split(" ").filter(Boolean).map(Number) })),
        }),
    curves.length === 0
      ? h("p", { class: "muted" }, t("compare.none"))
      : h("div", {
          class: "overlay", role: "img", "aria-label": `${title}: ${curves.map((curve) => curve.name).join(" \u00b7 ")}`,
          island: { create: createOverlay, data: { curves, marks, from, to, axis, unit: t(`compare.x_${x || "step"}`), theme: state.theme, ready: state.plotly, zoom: (/** @type {number | null} */ first, /** @type {number | null} */ last) => act.navigate({ from: first, to: last }) } },
        }),
  );
}
