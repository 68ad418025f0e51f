/** All cards with their clocks, links and errors, and what slows them. A dash is not a zero. */

import { isNarrow, isSlowed } from "../../data/card-health.js";
import { number } from "../../data/json.js";
import { count, fixed } from "../../data/text.js";
import { h } from "../dom.js";
import { severityMark } from "../marks.js";
import { cardName } from "./devices.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/cards.js").Card} Card */
/** @typedef {import("../../data/card-health.js").Health} Health */

const NONE = "\u2014";
const COLUMNS = ["card", "core_clock", "memory_clock", "pcie", "xgmi", "uncorrected", "corrected", "replays", "power", "heat", "brake"];
const LEFT = ["card", "pcie", "xgmi"];

/** @param {readonly Card[]} cards @param {ReadonlyMap<string, Health>} found @param {State} state @param {Context} context */
export function cardHealth(cards, found, state, context) {
  const { t } = context;
  const told = cards.some((card) => found.has(card.key) || clock(card, "core_clock_mhz") !== null || clock(card, "memory_clock_mhz") !== null);
  return h(
    "section",
    { class: "cards-health", "aria-labelledby": "health-title" },
    h("h2", { id: "health-title" }, t("health.title")),
    told
      ? h(
          "div",
          { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "health-title" },
          h(
            "table",
            { class: "table" },
            h("thead", null, h("tr", null, COLUMNS.map((name) => h("th", { scope: "col", class: LEFT.includes(name) ? "" : "figure" }, t(`health.${name}`))))),
            h("tbody", null, cards.map((card) => row(card, card.silent ? {} : (found.get(card.key) ?? {}), state, context))),
          ),
        )
      : h("p", { class: "muted" }, t("health.none")),
    told ? h("p", { class: "how" }, t("health.how")) : null,
  );
}

/** @param {Card} card @param {"core_clock_mhz" | "memory_clock_mhz"} name */
function clock(card, name) {
  const value = card.silent ? undefined : number(card.last?.[name]);
  return value === undefined || !Number.isFinite(value) ? null : `${fixed(value, 0)} MHz`;
}

/** @param {Card} card @param {Health} health @param {State} state @param {Context} context */
function row(card, health, state, { t, act }) {
  const { own } = state.route;
  const chosen = own["card"] === card.key;
  const errors = health.ecc_uncorrected;
  return h(
    "tr",
    { key: card.key, class: `${chosen ? "chosen" : ""}${card.silent ? " silent" : ""}` },
    h("th", { scope: "row" }, h("a", { href: act.link({ own: { ...own, card: chosen ? "" : card.key } }), "aria-current": chosen ? "true" : undefined }, h("bdi", null, cardName(card)))),
    h("td", { class: "figure" }, clock(card, "core_clock_mhz") ?? NONE),
    h("td", { class: "figure" }, clock(card, "memory_clock_mhz") ?? NONE),
    h("td", { class: "figure left" }, link(health, t)),
    h("td", { class: "figure left" }, xgmi(health, t)),
    h("td", { class: "figure" }, errors ? marked("critical", count(errors)) : count(errors)),
    h("td", { class: "figure" }, count(health.ecc_corrected)),
    h("td", { class: "figure" }, count(health.pcie_replays)),
    h("td", { class: "figure" }, share(health.throttle_power_percent)),
    [health.throttle_thermal_percent, health.throttle_brake_percent].map((value, i) => h("td", { class: "figure", key: `slowed-${i}` }, isSlowed(value) ? marked("warning", share(value)) : share(value))),
  );
}

/** @param {import("../../data/types.js").Severity} severity @param {string} text */
const marked = (severity, text) => h("span", { class: "said" }, severityMark(severity), text);

/** @param {number | undefined} value */
const share = (value) => (value === undefined ? NONE : `${fixed(value, 0)} %`);

/** @param {Health} health @param {Context["t"]} t */
function link(health, t) {
  const { pcie_width: width, pcie_max_width: most, pcie_speed_gts: speed } = health;
  if (width === undefined) return NONE;
  const rate = speed === undefined ? "" : ` \u00b7 ${speed} GT/s`;
  return isNarrow(health) ? marked("warning", t("health.narrow", { width: String(width), most: String(most) }) + rate) : `\u00d7${width}${rate}`;
}

/** @param {Health} health @param {Context["t"]} t */
function xgmi({ xgmi_links: links, xgmi_bytes_per_s: traffic }, t) {
  const parts = [links === undefined ? null : t("health.links", { n: count(links) }), traffic === undefined ? null : `${fixed(traffic / 1e9, 1)} GB/s`];
  return parts.filter(Boolean).join(" \u00b7 ") || NONE;
}
