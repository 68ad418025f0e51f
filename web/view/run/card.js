/** One card by time: how busy, its memory, power, temperature and clocks, what slows it, its errors. */

import { PACE_S, SELDOM } from "../../data/card-health.js";
import { cardKey } from "../../data/cards.js";
import { number, numbers } from "../../data/json.js";
import { h } from "../dom.js";
import { failure, loading } from "../notes.js";
import { createTimeChart } from "../time-chart.js";
import { cardName } from "./devices.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/cards.js").Reading} Reading */

const GIB = 2 ** 30;

/** Charts with the figures of each, its lines told apart by their dashes, and the unit. */
const CHARTS = /** @type {const} */ ([
  { name: "busy_percent", figures: ["busy_percent", "memory_busy_percent"], factor: 1, top: 100, unit: "%" },
  { name: "vram", figures: ["vram_used_bytes", "reserved_bytes", "allocated_bytes"], factor: 1 / GIB, top: null, unit: "GiB" },
  { name: "power_watts", figures: ["power_watts"], factor: 1, top: null, unit: "W" },
  { name: "temperature_celsius", figures: ["temperature_celsius"], factor: 1, top: null, unit: "\u00b0C" },
  { name: "clocks", figures: ["core_clock_mhz", "memory_clock_mhz"], factor: 1, top: null, unit: "MHz" },
  { name: "slowed", figures: ["throttle_power_percent", "throttle_thermal_percent", "throttle_brake_percent"], factor: 1, top: 100, unit: "%" },
  { name: "errors", figures: ["ecc_uncorrected", "ecc_corrected"], factor: 1, top: null, unit: null },
]);
const DASHES = [[], [5, 3], [1, 3]];

/** @param {State} state @param {readonly import("../../data/cards.js").Card[]} cards @param {import("../../data/cards.js").Span | null} span @param {Context} context */
export function oneCard(state, cards, span, context) {
  const { t, act } = context;
  const { own } = state.route;
  const card = cards.find(({ key }) => key === own["card"]);
  if (!card || span === null) return null;
  const live = (own["span"] ?? "") === "";
  const { data, error } = state.cards.card;
  const of = (/** @type {string} */ figure, /** @type {number} */ factor) => (live ? recent(state, card.key, figure, factor) : pooled(data ?? [], card.key, figure, factor));
  return h(
    "section",
    { class: "card-detail", key: card.key, "aria-labelledby": "card-title" },
    h("h2", { id: "card-title" }, h("bdi", null, cardName(card)), h("span", { class: "muted" }, card.pci ?? card.backend), h("button", { type: "button", class: "plain", onclick: () => act.navigate({ own: { ...own, card: "" } }) }, t("drawer.close"))),
    error ? failure(context, error) : !live && data === null ? loading(context, t("what.devices")) : null,
    CHARTS.map(({ name, figures, factor, top, unit }) => {
      const lines = figures.map((figure, i) => ({ figure, readings: of(figure, factor), dash: DASHES[i] ?? [], pace: isSeldom(figure) ? PACE_S : 0 }));
      const seen = lines.filter(({ readings }) => readings.some(({ mean }) => !Number.isNaN(mean)));
      const limit = name === "vram" && card.total !== null ? card.total * factor : null;
      return h(
        "div",
        { class: "card-chart", key: name },
        h("h3", null, unit === null ? t(`cards.${name}`) : `${t(`cards.${name}`)}, ${unit}`, figures.length > 1 ? seen.map(({ figure, dash }) => h("span", { class: `line-key dash-${dash[0] ?? 0}`, key: figure }, t(`cards.line.${figure}`))) : null),
        seen.length === 0 ? h("p", { class: "muted" }, t("cards.not_read")) : h("div", { class: "time-chart", role: "img", "aria-label": t("cards.chart_label", { figure: t(`cards.${name}`), card: cardName(card) }), island: { create: createTimeChart, data: { lines: seen, span, top, limit, height: 120, theme: state.theme, width: state.width } } }),
      );
    }),
  );
}

/** @param {string} figure */
const isSeldom = (figure) => SELDOM.some((name) => name === figure);

/** @param {State} state @param {string} key @param {string} figure @param {number} factor @returns {Reading[]} */
function recent(state, key, figure, factor) {
  return (state.devices.data ?? [])
    // A reading without what is read seldom says nothing of it; null is what could not be had.
    .filter((sample) => cardKey(sample) === key && (/** @type {any} */ (sample)[figure] !== undefined))
    .map((sample) => {
      const mean = (number(/** @type {any} */ (sample)[figure]) ?? NaN) * factor;
      return { key, at: sample.time_ns / 1e9, cell: 0, mean, low: mean, high: mean };
    })
    .sort((a, b) => a.at - b.at);
}

/** @param {readonly import("../../data/cards.js").CardSeries[]} series @param {string} key @param {string} figure @param {number} factor @returns {Reading[]} */
function pooled(series, key, figure, factor) {
  return series
    .filter((one) => one.figure === figure && cardKey(one) === key)
    .flatMap((one) => {
      const [means, lows, highs] = [one.values, one.min, one.max].map(numbers);
      return one.times.map((at, i) => ({ key, at, cell: one.cell, mean: (means?.[i] ?? NaN) * factor, low: (lows?.[i] ?? NaN) * factor, high: (highs?.[i] ?? NaN) * factor }));
    })
    .sort((a, b) => a.at - b.at);
}
