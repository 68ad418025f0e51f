/** The heat map with its selectors, legend and read-out. */

import { formats } from "../data/formats.js";
import { MISSING_BITS } from "../data/fsb1.js";
import { PHONE } from "../data/geometry.js";
import { columnOf, valueAt } from "../data/grid.js";
import { KINDS, OF_UPDATES } from "../data/route.js";
import { METRICS, MISSING, NONFINITE, OVER, UNDER, classify, scaleFor } from "../data/scale.js";
import { count, figure, metricText, tickLabel } from "../data/text.js";
import { alertsInView } from "../state.js";
import { h } from "./dom.js";
import { createHeat } from "./heat-canvas.js";
import { legend } from "./legend.js";
import { formatChip } from "./marks.js";
import { empty, failure, pendingNote } from "./notes.js";
import { pngButton } from "./png.js";

/** Counted while the run goes on, in the format of each layer and in no other. */
const COUNTED = ["underflow", "overflow"];

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../data/grid.js").Grid} Grid */

/** @type {{ grid: Grid | null, rev: number, scale: import("../data/scale.js").Scale, blank: boolean }} */
let held = { grid: null, rev: -1, scale: scaleFor("headroom", []), blank: true };

/** The scale of a grid, and whether nothing in it was observed; looked for once a revision. @param {Grid} grid @param {number} rev */
function readingOf(grid, rev) {
  if (held.grid !== grid || held.rev !== rev) {
    held = { grid, rev, scale: scaleFor(grid.meta.metric, grid.values, grid.meta.band), blank: grid.bits.every((bits) => bits === MISSING_BITS) };
  }
  return held;
}

/** Pixels that the lines take beside other traces. */
const ROOM = 600;

/**
 * @typedef {object} View how the layers are laid out
 * @property {(grid: Grid) => { grid: Grid, lineOf: ReadonlyMap<string, number> }} arranged
 * @property {number} room pixels that the lines may take
 * @property {(line: import("../data/grid.js").HeatLayer, step: number) => void} open what a click on a line does
 * @property {import("./dom.js").Child} controls
 */

/** @param {State} state @param {import("../data/geometry.js").Range} range @param {Context} context @param {View | null} [view] null: one line a layer, in order of execution */
export function heat(state, range, context, view = null) {
  const { t, act } = context;
  const { data: grid, error } = state.heat;
  const note = pendingNote(context, state.heat, t("what.heat"));
  const { scale, blank } = grid ? readingOf(grid, state.heatRev) : { scale: null, blank: true };
  const { route } = state;
  const shown = grid && view ? view.arranged(grid) : { grid, lineOf: null };
  const open = view?.open ?? ((/** @type {import("../data/grid.js").HeatLayer} */ layer, /** @type {number} */ step) => act.navigate({ layer: layer.name, step }));
  return h(
    "section",
    { class: "heat", "aria-labelledby": "heat-title" },
    h(
      "div",
      { class: "heat-bar" },
      h("h2", { id: "heat-title" }, t("heat.title")),
      select(t("heat.metric"), route.metric, Object.keys(METRICS).map((name) => [name, t(`metric.${name}`)]), (metric) => act.navigate(metric === OF_UPDATES ? { metric, kind: "update" } : { metric })),
      select(t("heat.kind"), route.kind, KINDS.map((name) => [name, t(`kind.${name}`)]), (kind) => act.navigate({ kind })),
      select(t("heat.format"), route.format, [["auto", t("heat.auto")], ...[...formats.keys()].map((name) => /** @type {[string, string]} */ ([name, name]))], (format) => act.navigate({ format })),
      scale && !blank ? h("div", { class: "heat-key" }, legend(state, scale, t), pngButton(state, range, `${t("heat.title")}: ${t(`metric.${route.metric}`)}`, `${t(`kind.${route.kind}`)} \u00b7 ${route.format === "auto" ? t("heat.auto") : route.format}`, t)) : null,
    ),
    view?.controls,
    error && grid ? failure(context, error) : null,
    note ?? picture(),
  );

  /** The heat map, or why there is none. */
  function picture() {
    if (!shown.grid || !scale || blank) {
      return COUNTED.includes(route.metric) && route.format !== "auto"
        ? empty(t("heat.executed", { format: route.format, kind: t(`kind.${route.kind}`) }), t("heat.executed_hint"), h("button", { type: "button", onclick: () => act.navigate({ format: "auto" }) }, t("heat.executed_show")))
        : empty(t("heat.empty", { kind: t(`kind.${route.kind}`) }), t("heat.empty_hint"));
    }
    if (shown.grid.meta.layers.length === 0) return empty(t("heat.none_match"), t("heat.none_match_hint"));
    return [
      h("div", {
        class: "heat-map",
        tabindex: "0",
        role: "application",
        "aria-label": t("heat.label", { layers: count(shown.grid.meta.layers.length), from: count(range.from), to: count(range.to) }),
        "aria-describedby": "readout",
        island: {
          create: createHeat,
          data: {
            grid: shown.grid, rev: state.heatRev, range, scale, theme: state.theme, width: state.width, cursor: state.cursor, route, alerts: alertsInView(state),
            lineOf: shown.lineOf, room: view?.room ?? ROOM, open, stepWord: t("axis.step"), act,
          },
        },
      }),
      readout(state, shown.grid, scale, context, open),
    ];
  }
}

/**
 * @param {string} label @param {string} value @param {readonly (readonly [string, string])[]} options @param {(value: string) => void} choose
 */
function select(label, value, options, choose) {
  return h(
    "label",
    { class: "select" },
    h("span", { class: "label" }, label),
    h("select", { value, onchange: (/** @type {Event} */ event) => choose(/** @type {HTMLSelectElement} */ (event.currentTarget).value) }, options.map(([key, text]) => h("option", { value: key }, text))),
  );
}

/** Everything about the cell under the pointer. @param {State} state @param {Grid} grid @param {import("../data/scale.js").Scale} scale @param {Context} context @param {View["open"]} open */
function readout(state, grid, scale, { t }, open) {
  const { cursor } = state;
  const layer = cursor ? grid.meta.layers[cursor.row] : undefined;
  if (!cursor || !layer) return h("p", { id: "readout", class: "readout muted" }, t(state.width < PHONE ? "heat.hint_touch" : "heat.hint"));
  const column = columnOf(grid, cursor.step);
  const value = valueAt(grid, cursor.row, column);
  const first = grid.first + column * grid.cell;
  const last = Math.min(first + grid.cell - 1, Math.max(grid.last, first));
  const { metric } = grid.meta;
  const members = "members" in layer ? Number(layer.members) : 1;
  const format = layer.format === null ? undefined : formats.get(layer.format);
  return h(
    "p",
    { id: "readout", class: "readout", "aria-live": "polite" },
    h("strong", { class: "readout-layer" }, layer.name),
    members > 1 ? h("span", null, t("heat.worst_of", { n: count(members) })) : null,
    h("span", null, last > first ? t("step_range", { from: count(first), to: count(last) }) : t("at_step", { step: count(first) })),
    h("strong", { class: `readout-value class-${value === undefined ? MISSING : classify(scale, value)}` }, metricText(metric, value, t("unit.bits"))),
    h("span", null, formatChip(layer.format), format ? ` max ${figure(format.max)}` : null),
    h("span", { class: "meaning" }, meaning(metric, value, scale, t)),
    h("button", { type: "button", class: "touch", onclick: () => open(layer, first) }, t(members > 1 ? "heat.open_group" : "heat.open")),
  );
}

/** @param {string} metric @param {number | undefined} value @param {import("../data/scale.js").Scale} scale @param {Context["t"]} t */
function meaning(metric, value, scale, t) {
  if (value === undefined) return t("meaning.missing");
  const kind = classify(scale, value);
  if (kind === NONFINITE) return t("meaning.not_finite");
  if (metric === OF_UPDATES) {
    const band = { low: tickLabel(10 ** scale.low), high: tickLabel(10 ** scale.high) };
    return t(kind === OVER ? "meaning.ratio_high" : kind === UNDER ? "meaning.ratio_low" : "meaning.ratio", band);
  }
  if (kind === OVER) return t("meaning.over", { times: figure(2 ** -value) });
  if (metric === "headroom" && value === Infinity) return t("meaning.all_zero");
  if (metric === "headroom" && value < 1) return t("meaning.near", { times: figure(2 ** value) });
  if (metric === "headroom" && value < 64) return t("meaning.clear", { times: figure(2 ** value) });
  return t(`meaning.${metric}`);
}
