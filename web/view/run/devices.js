/** The cards of a run: how busy each is by time, where its memory went, what else it reads, and the phases of a step. */

import { FIGURES, balanceOf, cardsOf, cellsOf, meansOf, readingsFrom, readingsOf, recentSpan, rowName, stepAt, stepMarks, timeOf, wholeSpan } from "../../data/cards.js";
import { healthOf } from "../../data/card-health.js";
import { PHONE } from "../../data/geometry.js";
import { ordered } from "../../data/health.js";
import { clock, count, fixed } from "../../data/text.js";
import { alertItem } from "../alerts.js";
import { h } from "../dom.js";
import { empty, failure, pendingNote } from "../notes.js";
import { createTimeHeat, heatHeight } from "../time-heat.js";
import { oneCard } from "./card.js";
import { cardHealth } from "./card-health.js";
import { cardTable } from "./card-table.js";
import { phases } from "./phases.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/cards.js").Figure} Figure */
/** @typedef {{ cards: import("../../data/cards.js").Card[], figure: Figure, cells: import("../../data/cards.js").Cells, means: number[] }} View */

const SPANS = ["", "hour", "all"];

/** Rules that speak of cards. */
const FAULTS = ["gpu_fault", "gpu_util_drop", "gpu_imbalance", "vram_near_oom", "vram_leak", "vram_jitter", "stalled", "straggler", "throughput_drop"];

const COLUMNS = 240;
const RECENT_COLUMNS = 150;

/** @type {{ samples: unknown, history: unknown, figure: string, view: { cards: View["cards"], cells: View["cells"] | null, means: number[], health: ReturnType<typeof healthOf> } } | null} */
let held = null;

/**
 * Cards and cells, made once for what came: 64 cards have 19,200 readings in five minutes, and the pointer moves often.
 * @param {readonly import("../../data/types.js").DeviceSample[]} samples
 * @param {readonly import("../../data/cards.js").CardSeries[] | null} history null: the readings themselves are shown
 * @param {Figure} figure
 */
function viewOf(samples, history, figure) {
  if (held?.samples === samples && held.history === history && held.figure === figure) return held.view;
  const cards = cardsOf(samples, history ?? []);
  const readings = history === null ? readingsOf(samples, figure) : readingsFrom(history, figure);
  const span = (history === null ? null : wholeSpan(readings)) ?? recentSpan(samples);
  const cells = span === null ? null : cellsOf(cards.map(({ key }) => key), readings, span, history === null ? RECENT_COLUMNS : COLUMNS);
  const view = { cards, cells, means: cells === null ? [] : meansOf(cells, cards.length), health: healthOf(samples) };
  held = { samples, history, figure, view };
  return view;
}

/** @param {State} state @param {Context} context */
export function devicesTab(state, context) {
  const { t } = context;
  const note = pendingNote(context, state.devices, t("what.devices"));
  const samples = state.devices.data;
  if (note || samples === null) return h("div", { class: "cards" }, note, phases(state, context));
  const { history } = state.cards;
  const live = (state.route.own["span"] ?? "") === "";
  const figure = /** @type {Figure} */ (state.route.own["figure"] || "busy_percent");
  const { cards, cells, means, health } = viewOf(samples, live ? null : (history.data ?? []), figure);
  if (cards.length === 0) return h("div", { class: "cards" }, empty(t("devices.none"), t("devices.none_hint")), phases(state, context));
  return h(
    "div",
    { class: "cards" },
    bar(state, cards.length, context),
    state.devices.error ? failure(context, state.devices.error) : null,
    live ? null : history.data === null ? pendingNote(context, history, t("what.devices")) : history.error ? failure(context, history.error) : null,
    cells === null || (!live && history.data === null) ? null : map({ cards, figure, cells, means }, state, context),
    oneCard(state, cards, cells?.span ?? null, context),
    cardTable(state, cards, means, figure, context),
    cardHealth(cards, health, state, context),
    faults(state, context),
    phases(state, context),
  );
}

/** What is shown of which stretch. @param {State} state @param {number} cards @param {Context} context */
function bar(state, cards, { t, act }) {
  const { own } = state.route;
  return h(
    "div",
    { class: "cards-bar" },
    h("h2", null, t("cards.title", { n: count(cards) })),
    h(
      "label",
      { class: "select" },
      h("span", { class: "label" }, t("heat.metric")),
      h("select", { value: own["figure"] || "busy_percent", onchange: (/** @type {Event} */ event) => { const { value } = /** @type {HTMLSelectElement} */ (event.currentTarget); act.navigate({ own: { ...own, figure: value === "busy_percent" ? "" : value } }); } }, Object.keys(FIGURES).map((name) => h("option", { value: name }, t(`cards.${name}`)))),
    ),
    h("nav", { class: "spans", "aria-label": t("cards.span") }, SPANS.map((name) => h("a", { key: name, href: act.link({ own: { ...own, span: name } }), "aria-current": (own["span"] ?? "") === name ? "true" : undefined }, t(`cards.span.${name || "recent"}`)))),
  );
}

/** A value with its unit, a dash where it was not read. @param {Figure} figure @param {number} value */
export function figureText(figure, value) {
  return Number.isNaN(value) ? "\u2014" : `${fixed(value, 0)} ${FIGURES[figure].unit}`;
}

/** @param {import("../../data/cards.js").Card} card */
export const cardName = ({ rank, index, name, backend }) => `${rank} \u00b7 ${index} \u00b7 ${name ?? backend}`;

/** @param {View} view @param {State} state @param {Context} context */
function map({ cards, figure, cells, means }, state, { t, act }) {
  const { own, step } = state.route;
  const times = state.cards.times.data ?? [];
  const seen = cells.high.filter((value) => !Number.isNaN(value));
  const top = FIGURES[figure].top ?? Math.max(1, Math.ceil(seen.reduce((most, value) => Math.max(most, value), 0) / 50) * 50);
  /** @type {import("../../data/scale.js").Scale} */
  const scale = { kind: "count", low: 0, high: top, beyond: 0 };
  const at = step === null ? null : timeOf(times, step);
  const balance = balanceOf(means);
  const [low, high] = [balance && cards[balance.low], balance && cards[balance.high]];
  const choose = (/** @type {number} */ row) => {
    const key = cards[row]?.key;
    if (key !== undefined) act.navigate({ own: { ...own, card: own["card"] === key ? "" : key } });
  };
  return h(
    "section",
    { class: "cards-map", "aria-label": t(`cards.${figure}`) },
    h("p", { class: "balance" }, balance && low && high ? t("cards.balance", { spread: fixed(balance.spread, 0), unit: FIGURES[figure].unit === "%" ? t("cards.points") : FIGURES[figure].unit, low: cardName(low), least: figureText(figure, means[balance.low] ?? NaN), high: cardName(high), most: figureText(figure, means[balance.high] ?? NaN) }) : null, h("span", { class: "cards-scale" }, "0", h("span", { class: "ramp", "aria-hidden": "true" }), figureText(figure, top))),
    h("div", {
      class: "time-heat",
      tabindex: "0",
      role: "application",
      "aria-label": t("cards.map_label", { figure: t(`cards.${figure}`), n: count(cards.length) }),
      "aria-describedby": "cards-readout",
      style: { height: `${heatHeight(cards.length)}px` },
      island: {
        create: createTimeHeat,
        data: {
          cells, names: cards.map((card) => (state.width < PHONE ? `${card.rank}\u00b7${card.index}` : rowName(card))), chosen: cards.findIndex(({ key }) => key === own["card"]), steps: stepMarks(times, cells.span, 8), mark: at === null || step === null ? null : { step, at }, scale, theme: state.theme,
          width: state.width, cursor: state.cards.cursor, point: act.cards.point, choose, stepWord: times.length > 0 ? t("axis.step") : "",
        },
      },
    }),
    readout({ cards, figure, cells, means }, state, { t, act }),
  );
}

/** @param {View} view @param {State} state @param {Context} context */
function readout({ cards, figure, cells }, state, { t, act }) {
  const { cursor } = state.cards;
  const card = cursor ? cards[cursor.row] : undefined;
  if (!cursor || !card) return h("p", { id: "cards-readout", class: "readout muted" }, t("cards.hint"));
  const place = cursor.row * cells.columns + cursor.column;
  const [mean, low, high] = [cells.mean, cells.low, cells.high].map((plane) => plane[place] ?? NaN);
  const width = (cells.span.to - cells.span.from) / cells.columns;
  const at = cells.span.from + (cursor.column + 0.5) * width;
  const step = stepAt(state.cards.times.data ?? [], at);
  return h(
    "p",
    { id: "cards-readout", class: "readout", "aria-live": "polite" },
    h("strong", { class: "readout-layer" }, cardName(card)),
    h("time", null, clock(at * 1000, state.now)),
    h("strong", { class: "readout-value" }, figureText(figure, mean ?? NaN)),
    Number.isNaN(mean) ? h("span", { class: "muted" }, t("cards.unread")) : low === high ? null : h("span", { class: "muted" }, t("cards.extremes", { low: figureText(figure, low ?? NaN), high: figureText(figure, high ?? NaN) })),
    step === null ? null : h("a", { href: act.link({ tab: "overview", step }) }, t("at_step", { step: count(step) })),
  );
}

/** What the rules say of the cards. @param {State} state @param {Context} context */
function faults(state, context) {
  const { t } = context;
  const own = (state.alerts.data ?? []).filter(({ kind }) => FAULTS.includes(kind));
  return h(
    "section",
    { class: "cards-faults", "aria-labelledby": "faults-title" },
    h("h2", { id: "faults-title" }, t("cards.faults")),
    state.alerts.data === null ? pendingNote(context, state.alerts, t("what.alerts")) : own.length === 0 ? h("p", { class: "quiet" }, h("span", { class: "ok", "aria-hidden": "true" }), t("cards.no_faults")) : h("ol", { class: "alert-list" }, ordered(own).map((alert) => alertItem(alert, state, context))),
  );
}

