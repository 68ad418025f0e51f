/** All cards with their newest readings: rank, card, PCI address, memory, what the doctor said. A dash is not a zero. */

import { bandsOf } from "../../data/cards.js";
import { number } from "../../data/json.js";
import { clock, count, fixed, gibibytes } from "../../data/text.js";
import { h } from "../dom.js";
import { severityMark } from "../marks.js";
import { figureText } from "./devices.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/cards.js").Card} Card */

/** Classes of the parts. @type {Record<string, string>} */
const BAND = { allocated: "tensors", cached: "cached", other: "other", free: "free" };

/** @param {State} state @param {readonly Card[]} cards @param {readonly number[]} means @param {import("../../data/cards.js").Figure} figure @param {Context} context */
export function cardTable(state, cards, means, figure, context) {
  const { t } = context;
  const verdicts = state.detail.data?.config?.doctor ?? null;
  const bad = verdicts?.filter(({ status }) => status !== "ok") ?? [];
  const columns = ["rank", "card", "pci", "vram", "busy_percent", "mean", "memory_busy_percent", "power_watts", "temperature_celsius", "retries", "doctor"];
  return h(
    "section",
    { class: "cards-table", "aria-labelledby": "cards-now" },
    h("h2", { id: "cards-now" }, t("cards.now"), h("span", { class: "legend-bands muted" }, ["allocated", "cached", "other", "free"].map((name) => h("span", { key: name }, h("span", { class: `swatch ${BAND[name]}`, "aria-hidden": "true" }), t(`cards.band.${name}`))))),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "cards-now" },
      h(
        "table",
        { class: "table" },
        h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col", class: ["card", "pci", "vram", "doctor"].includes(name) ? "" : "figure" }, name === "mean" ? t("cards.mean", { figure: t(`cards.${figure}`) }) : t(`cards.${name}`))))),
        h("tbody", null, cards.map((card, i) => row(card, means[i] ?? NaN, figure, verdicts, state, context))),
      ),
    ),
    verdicts === null ? null : h("p", { class: "how" }, bad.length === 0 ? t("cards.doctor_ok", { n: count(verdicts.length) }) : [t("cards.doctor_bad"), h("ul", { class: "verdicts" }, bad.map((one) => h("li", { key: one.item }, severityMark(one.status === "wrong" ? "critical" : "warning"), h("strong", null, one.item), ` ${one.value}. ${one.why} ${one.fix}`)))]),
  );
}

/** @param {Card} card @param {number} mean @param {import("../../data/cards.js").Figure} figure @param {readonly import("../../data/types.js").DoctorVerdict[] | null} verdicts @param {State} state @param {Context} context */
function row(card, mean, figure, verdicts, state, { t, act }) {
  const { own } = state.route;
  // What was read before a card fell silent is not what is.
  const last = card.silent ? null : card.last;
  const chosen = own["card"] === card.key;
  const plain = (/** @type {"busy_percent" | "memory_busy_percent" | "power_watts" | "temperature_celsius"} */ name, /** @type {string} */ unit) => {
    const value = number(last?.[name]);
    return h("td", { class: "figure" }, value === undefined || !Number.isFinite(value) ? "\u2014" : `${fixed(value, 0)} ${unit}`);
  };
  return h(
    "tr",
    { key: card.key, class: `${chosen ? "chosen" : ""}${card.silent ? " silent" : ""}` },
    h("td", { class: "figure" }, String(card.rank)),
    h(
      "th",
      { scope: "row" },
      h("a", { href: act.link({ own: { ...own, card: chosen ? "" : card.key } }), "aria-current": chosen ? "true" : undefined }, h("bdi", null, `${card.index} \u00b7 ${card.name ?? card.backend}`)),
      card.silent ? h("span", { class: "unheard" }, severityMark("warning"), card.last ? t("cards.silent", { time: clock(card.last.time_ns / 1e6, state.now) }) : t("cards.gone")) : null,
    ),
    h("td", { class: "figure left" }, card.pci ?? "\u2014"),
    h("td", null, memory(last, card, t)),
    plain("busy_percent", "%"),
    h("td", { class: "figure" }, figureText(figure, mean)),
    plain("memory_busy_percent", "%"),
    plain("power_watts", "W"),
    plain("temperature_celsius", "\u00b0C"),
    h("td", { class: "figure" }, `${count(last?.alloc_retries)} / ${count(last?.ooms)}`),
    h("td", null, doctor(card, verdicts, t)),
  );
}

/** Where the memory is. @param {import("../../data/types.js").DeviceSample | null} sample @param {Card} card @param {Context["t"]} t */
function memory(sample, card, t) {
  const bands = sample ? bandsOf(sample) : null;
  if (bands === null) {
    const held = sample?.allocated_bytes;
    return h("span", { class: "figure" }, `${typeof held === "number" ? t("cards.held", { size: gibibytes(held) }) : "\u2014"}${card.total === null ? "" : ` / ${gibibytes(card.total)} GiB`}`);
  }
  const parts = /** @type {const} */ (["allocated", "cached", "other"]).flatMap((name) => (bands[name] === null ? [] : [{ name, bytes: bands[name] ?? 0 }]));
  if (parts.length === 0) parts.push({ name: "other", bytes: bands.used });
  const title = parts.map(({ name, bytes }) => `${t(`cards.band.${name}`)} ${gibibytes(bytes)} GiB`).join(", ");
  const full = bands.used / bands.total >= 0.95;
  return h(
    "span",
    { class: "memory" },
    h("span", { class: `bands${full ? " full" : ""}`, role: "img", "aria-label": title, title }, parts.map(({ name, bytes }) => h("span", { key: name, class: BAND[name], style: { width: `${(bytes / bands.total) * 100}%` } }))),
    h("span", { class: "figure" }, `${gibibytes(bands.used)} / ${gibibytes(bands.total)} GiB`),
  );
}

/** What the doctor said of this address. @param {Card} card @param {readonly import("../../data/types.js").DoctorVerdict[] | null} verdicts @param {Context["t"]} t */
function doctor(card, verdicts, t) {
  const own = card.pci === null ? [] : (verdicts ?? []).filter(({ item }) => item.includes(card.pci ?? ""));
  if (own.length === 0) return "\u2014";
  const worst = own.find(({ status }) => status === "wrong") ?? own.find(({ status }) => status === "warning");
  if (!worst) return h("span", { class: "said" }, h("span", { class: "ok", "aria-hidden": "true" }), t("cards.ok"));
  return h("span", { class: "said", title: `${worst.why} ${worst.fix}` }, severityMark(worst.status === "wrong" ? "critical" : "warning"), `${worst.item.split(" ")[0]}: ${worst.value}`);
}
