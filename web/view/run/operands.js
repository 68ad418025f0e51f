/** Operands with a scale of their own: how near each is to the largest number of its format, and one of them over the steps. */

import { number } from "../../data/json.js";
import { bitsLeft, historySeries, operandKey, operandOf, operandRows } from "../../data/scaler.js";
import { bits, count, figure, percent, powerOfTwo } from "../../data/text.js";
import { trace } from "../charts.js";
import { h } from "../dom.js";
import { formatChip } from "../marks.js";
import { failure, loading } from "../notes.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../data/scaler.js").Operand} Operand */

/** @type {Record<"absmax" | "headroom" | "scale", import("../charts.js").Chart>} */
const CHARTS = {
  headroom: { name: "operand_headroom", height: 130, axis: "linear", kinds: ["limit_near", "limit_crossed", "scale_extreme"], skips: false },
  absmax: { name: "operand_absmax", height: 130, axis: "log", kinds: ["limit_near", "limit_crossed", "underflow"], skips: false },
  scale: { name: "operand_scale", height: 108, axis: "log2", kinds: ["scale_extreme"], skips: false },
};

/** @param {State} state @param {import("../../data/geometry.js").Range} range @param {Context} context */
export function operands(state, range, context) {
  const { t, act } = context;
  const { operands: load, operandRows: limit } = state.scaler;
  const { own } = state.route;
  if (load.data === null) return load.error ? failure(context, load.error) : loading(context, t("what.operands"));
  if (load.data.length === 0) return null;
  const rows = operandRows(load.data, own["find"] ?? "", own["by"] ?? "");
  const shown = rows.slice(0, limit);
  const go = (/** @type {Record<string, string>} */ change) => act.navigate({ own: { ...own, ...change } });
  return h(
    "section",
    { class: "operands", "aria-labelledby": "operands-title" },
    h(
      "div",
      { class: "operands-bar" },
      h("h2", { id: "operands-title" }, t("operands.title"), h("span", { class: "muted" }, count(load.data.length))),
      h("label", { class: "select" }, h("span", { class: "label" }, t("operands.find")), h("input", { type: "search", value: own["find"] ?? "", onchange: (/** @type {Event} */ event) => go({ find: /** @type {HTMLInputElement} */ (event.currentTarget).value }) })),
      h(
        "label",
        { class: "select" },
        h("span", { class: "label" }, t("operands.order")),
        h("select", { value: own["by"] ?? "", onchange: (/** @type {Event} */ event) => go({ by: /** @type {HTMLSelectElement} */ (event.currentTarget).value }) }, h("option", { value: "" }, t("operands.closest")), h("option", { value: "layers" }, t("operands.execution"))),
      ),
    ),
    load.error ? failure(context, load.error) : null,
    history(state, range, context),
    shown.length === 0
      ? h("p", { class: "quiet" }, t("operands.not_found"))
      : h(
          "div",
          { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "operands-title" },
          h(
            "table",
            { class: "table" },
            h("thead", null, h("tr", null, ["layer", "operand", "format", "absmax", "scale", "share", "headroom", "underflow", "step"].map((name) => h("th", { scope: "col", class: name === "layer" || name === "operand" || name === "format" || name === "share" ? "" : "figure" }, t(`operands.${name}`))))),
            h("tbody", null, shown.map((operand) => row(operand, own["operand"] === operandKey(operand), context, () => go({ operand: operandKey(operand) }), own))),
          ),
        ),
    rows.length > shown.length ? h("button", { type: "button", onclick: act.scaler.moreOperands }, t("scaler.more", { n: count(rows.length - shown.length) })) : null,
    h("p", { class: "muted how" }, t("operands.how")),
  );
}

/** @param {Operand} operand @param {boolean} chosen @param {Context} context @param {() => void} choose @param {import("../../data/tab-fields.js").Own} own */
function row(operand, chosen, { t, act }, choose, own) {
  const share = number(operand.share);
  const left = bitsLeft(operand);
  const current = operand.scaling === "dynamic";
  const grade = left === undefined || current ? "" : left < 0 ? "over" : left < 1 ? "near" : "";
  const key = operandKey(operand);
  return h(
    "tr",
    { key, class: chosen ? "chosen" : "" },
    h("th", { scope: "row" }, h("a", { class: "layer", href: act.link({ own: { ...own, operand: key } }), "aria-current": chosen ? "true" : undefined, title: operand.layer, onclick: (/** @type {MouseEvent} */ event) => !event.ctrlKey && !event.metaKey && (event.preventDefault(), choose()) }, h("bdi", null, operand.layer))),
    h("td", null, `${t(`kind.${operand.kind}`)} `, h("span", { class: "muted" }, t(`scaling.${operand.scaling}`))),
    h("td", null, formatChip(operand.format)),
    h("td", { class: "figure" }, figure(number(operand.absmax))),
    h("td", { class: "figure" }, powerOfTwo(number(operand.scale))),
    h("td", null, fill(share, grade), h("span", { class: "figure share" }, percent(share))),
    h("td", { class: `figure ${grade}` }, current ? h("span", { class: "muted" }, t("operands.current")) : `${bits(left)} ${left === undefined ? "" : t("unit.bits")}`, grade === "" ? null : h("span", { class: "sr" }, ` ${t(grade === "over" ? "run.over" : "run.near")}`)),
    h("td", { class: "figure" }, percent(number(operand.underflow))),
    h("td", { class: "figure" }, count(operand.step)),
  );
}

/** How much of the format's range is used; the line at the end is its maximum. @param {number | undefined} share @param {string} grade */
function fill(share, grade) {
  const width = share === undefined || Number.isNaN(share) ? 0 : Math.min(1, share);
  return h("span", { class: `range ${grade}`, "aria-hidden": "true" }, h("span", { style: { width: `${width * 100}%` } }));
}

/** @param {State} state @param {import("../../data/geometry.js").Range} range @param {Context} context */
function history(state, range, context) {
  const { t, act } = context;
  const { own } = state.route;
  const chosen = operandOf(own["operand"] ?? "");
  if (chosen === null) return null;
  const { data, error } = state.scaler.history;
  const rows = data === null ? null : historySeries(data);
  return h(
    "div",
    { class: "operand", key: own["operand"] },
    h(
      "h3",
      null,
      h("a", { class: "layer", href: act.link({ tab: "layers", layer: chosen.layer, kind: chosen.kind }) }, h("bdi", null, chosen.layer)),
      h("span", { class: "muted" }, t(`kind.${chosen.kind}`)),
      data ? [formatChip(data.format), h("span", { class: "muted" }, `max ${figure(data.limit)} \u00b7 ${t(`scaling.${data.scaling}`)}`)] : null,
      h("button", { type: "button", class: "plain", onclick: () => act.navigate({ own: { ...own, operand: "" } }) }, t("drawer.close")),
    ),
    error ? failure(context, error) : data === null ? loading(context, t("what.operands")) : null,
    rows === null
      ? null
      : /** @type {const} */ (["headroom", "absmax", "scale"]).map((name) => {
          const series = rows[name];
          if (series === null) return h("p", { class: "note thin muted", key: name }, t("operands.scale_by_step"));
          return trace(state, range, context, { chart: CHARTS[name], series, last: series.values.at(-1), rev: 0, text: name === "scale" ? powerOfTwo : name === "headroom" ? bits : figure, layer: chosen.layer });
        }),
  );
}
