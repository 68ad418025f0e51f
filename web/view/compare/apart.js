/** Layer by layer: how far the second of two runs is from the first. */

import { apart, namesIn } from "../../data/compare.js";
import { AUTO_KIND, KINDS } from "../../data/route.js";
import { count, fixed } from "../../data/text.js";
import { pairOf } from "../../compare.js";
import { inkOf, addCanvas, onResize, prepare } from "../canvas.js";
import { choice } from "../desk/controls.js";
import { h } from "../dom.js";
import { pendingNote } from "../notes.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */

/** Rows beyond this differ less than all that are shown. */
const MOST_ROWS = 100;

/** @type {WeakMap<object, ReturnType<typeof apart>>} */
const held = new WeakMap();

/** @param {State} state @param {Context} context */
export function layersApart(state, context) {
  const { t, act } = context;
  const { own, kind } = state.route;
  const names = namesIn(own["runs"] ?? "");
  const [a, b] = pairOf(own, names.length);
  const go = (/** @type {Record<string, string>} */ change) => act.navigate({ own: { ...own, ...change } });
  const runs = names.map((name, place) => /** @type {const} */ ([String(place), `${place + 1}  ${name}`]));
  return h(
    "section",
    { class: "apart", "aria-labelledby": "apart-title" },
    h("h2", { id: "apart-title" }, t("compare.apart")),
    h(
      "div",
      { class: "filters" },
      choice(t("compare.a"), String(a), runs, (place) => go({ a: place })),
      choice(t("compare.b"), String(b), runs, (place) => go({ b: place })),
      choice(t("compare.metric"), own["of"] ?? "", [["", t("compare.headroom")], ["absmax", t("compare.absmax")]], (of) => go({ of })),
      choice(t("compare.kind"), kind === AUTO_KIND ? "grad" : kind, KINDS.map((one) => /** @type {const} */ ([one, t(`kind.${one}`)])), (one) => act.navigate({ kind: one })),
    ),
    table(state, context, names[a] ?? "", names[b] ?? ""),
  );
}

/** @param {State} state @param {Context} context @param {string} nameA @param {string} nameB */
function table(state, context, nameA, nameB) {
  const { t } = context;
  if (nameA === nameB) return h("p", { class: "muted" }, t("compare.same"));
  const gone = [nameA, nameB].filter((name) => !state.runs.data?.some((run) => run.name === name));
  if (gone.length > 0) return h("p", { class: "muted" }, t("compare.one_gone", { runs: gone.join(" \u00b7 ") }));
  const note = pendingNote(context, state.compare.apart, t("what.compare"));
  const answer = state.compare.apart.data;
  const [one, two] = answer ?? [];
  if (note || answer === null || !one || !two) return note;
  const found = held.get(answer) ?? apart(one, two, state.route.own["of"] || "headroom");
  held.set(answer, found);
  const rows = found.rows.slice(0, MOST_ROWS);
  const unit = state.route.own["of"] === "absmax" ? "log2" : t("unit.bits");
  const most = rows.reduce((high, row) => Math.max(high, Math.abs(row.largest) || 0), 0) || 1;
  const signed = (/** @type {number} */ value) => (Number.isFinite(value) ? `${value > 0 ? "+" : ""}${fixed(value, 2)}` : "\u2014");
  const only = (/** @type {string} */ run, /** @type {string[]} */ layers) =>
    layers.length === 0 ? null : h("details", { key: run, class: "only" }, h("summary", null, t("compare.only", { run, n: count(layers.length) })), h("ul", null, layers.map((name) => h("li", { key: name }, h("bdi", { class: "layer" }, name)))));
  return [
    only(nameA, found.onlyA),
    only(nameB, found.onlyB),
    rows.length === 0 || found.columns.length === 0
      ? h("p", { class: "muted" }, t("compare.no_common"))
      : [
          h("p", { class: "muted" }, t("compare.how", { layers: count(found.rows.length), n: count(found.columns.length), cell: count(found.cell) })),
          h(
            "table",
            { class: "apart-table" },
            h("thead", null, h("tr", null, ["layer", "largest", "at", "mean", "course"].map((name) => h("th", { key: name, scope: "col" }, t(`compare.${name}`, { unit }))))),
            h(
              "tbody",
              null,
              rows.map((row) =>
                h(
                  "tr",
                  { key: row.name },
                  h("th", { scope: "row", title: row.name }, h("div", { class: "apart-name" }, h("bdi", null, row.name), row.broken > 0 ? h("span", { class: "failed", title: t("compare.broken_how", { n: count(row.broken) }) }, t("compare.broken", { n: count(row.broken) })) : null)),
                  h("td", { class: "figure" }, signed(row.largest)),
                  h("td", { class: "figure" }, row.at < 0 ? "\u2014" : count(row.at)),
                  h("td", { class: "figure" }, signed(row.mean)),
                  h("td", null, h("div", { class: "strip-map", role: "img", "aria-label": t("compare.strip", { layer: row.name, value: signed(row.largest), step: count(row.at) }), island: { create: createStrip, data: { values: row.values, most, theme: state.theme } } })),
                ),
              ),
            ),
          ),
          found.rows.length > rows.length ? h("p", { class: "muted" }, t("compare.more", { n: count(found.rows.length - rows.length) })) : null,
        ],
  ];
}

const STRIP_HEIGHT = 22;

/** Bars from a line of no difference; of the columns that share a pixel the one that differs most shows. @param {HTMLElement} element @returns {import("../dom.js").Island} */
function createStrip(element) {
  const canvas = addCanvas(element);
  /** @type {{ values: Float64Array, most: number, theme: string } | null} */
  let data = null;
  const stop = onResize(element, draw);
  function draw() {
    if (data === null) return;
    const { values, most, theme } = data;
    const width = element.clientWidth;
    const context = prepare(canvas, width, STRIP_HEIGHT);
    const ink = inkOf(theme);
    const middle = STRIP_HEIGHT / 2;
    context.fillStyle = ink.line;
    context.fillRect(0, Math.floor(middle), width, 1);
    values.forEach((value, i) => {
      if (!Number.isFinite(value) || value === 0) return;
      const [left, right] = [(i / values.length) * width, ((i + 1) / values.length) * width];
      const tall = Math.max(1, (Math.abs(value) / most) * middle);
      context.fillStyle = value > 0 ? ink.warning : ink.info;
      context.fillRect(left, value > 0 ? middle - tall : middle, Math.max(1, right - left), tall);
    });
  }
  return {
    update(next) {
      const changed = data === null || next.values !== data.values || next.most !== data.most || next.theme !== data.theme;
      data = next;
      if (changed) draw();
    },
    destroy: stop,
  };
}
