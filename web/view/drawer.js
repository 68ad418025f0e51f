/** One layer: what it is, how far from the limit it was, and where in its formats its values lay. */

import { formats } from "../data/formats.js";
import { ordered } from "../data/health.js";
import { occupied } from "../data/histogram.js";
import { count } from "../data/text.js";
import { visibleRange } from "../state.js";
import { advice } from "./advice.js";
import { alertItem } from "./alerts.js";
import { h } from "./dom.js";
import { createHistogram } from "./histogram.js";
import { createTraces } from "./layer-series.js";
import { formatChip } from "./marks.js";
import { pendingNote } from "./notes.js";
import { pngButton } from "./png.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */

/** @param {State} state @param {Context} context */
export function drawer(state, context) {
  const { t, act } = context;
  const { route } = state;
  const name = route.layer ?? "";
  const kind = t(`kind.${route.kind}`);
  const close = () => {
    act.navigate({ layer: null });
    /** @type {HTMLElement | null} */ (document.querySelector(".heat-map"))?.focus();
  };
  const info = state.detail.data?.layers.find((layer) => layer.name === name);
  const own = ordered((state.alerts.data ?? []).filter((alert) => alert.layer === name || alert.detail?.layers?.includes(name)));
  return h(
    "aside",
    {
      class: "drawer",
      key: "drawer",
      "aria-labelledby": "drawer-title",
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") close();
        const to = event.key === "[" ? -1 : event.key === "]" ? 1 : 0;
        const next = to === 0 ? null : neighbour(state, to);
        if (next !== null) act.navigate({ layer: next });
      },
      island: undefined,
    },
    h("div", { class: "drawer-head" }, h("h2", { id: "drawer-title" }, name), neighbours(state, context), h("button", { type: "button", class: "plain", onclick: close, island: { create: takeFocus, data: t("drawer.close") } })),
    info
      ? h(
          "dl",
          { class: "facts" },
          h("div", null, h("dt", null, t("drawer.module")), h("dd", null, info.module_type ?? "\u2014")),
          h("div", null, h("dt", null, t("drawer.parameters")), h("dd", null, count(info.parameters))),
          (info.operands ?? []).map((operand) =>
            h(
              "div",
              { class: operand.kind === route.kind ? "current" : "" },
              h("dt", null, h("a", { href: act.link({ kind: operand.kind }) }, t(`kind.${operand.kind}`))),
              h("dd", null, formatChip(operand.format), ` ${t(`role.${operand.role}`)}`, operand.scaling === "none" ? "" : ` \u00b7 ${t(`scaling.${operand.scaling}`)}`),
            ),
          ),
        )
      : null,
    h("section", { class: "pictured" }, h("h3", null, t("drawer.histogram", { kind })), png(t("drawer.histogram", { kind }), name, state, context), picture(state, context)),
    h("section", { class: "pictured" }, h("h3", null, t("drawer.series", { kind })), png(t("drawer.series", { kind }), name, state, context), traces(state, context)),
    state.layer.data === null ? null : advice(state.layer.data.histogram.columns, state.layer.data.headroom.meta.layers[0]?.format ?? null, context),
    h("h3", null, t("alerts.title")),
    state.alerts.data === null ? pendingNote(context, state.alerts, t("what.alerts")) : own.length === 0 ? h("p", { class: "quiet" }, t("drawer.no_alerts")) : h("ol", { class: "alert-list" }, own.map((alert) => alertItem(alert, state, context))),
  );
}

/** @param {string} title @param {string} layer @param {State} state @param {Context} context */
function png(title, layer, state, { t }) {
  const range = visibleRange(state);
  const { data } = state.layer;
  if (data === null || range === null || data.histogram.columns.length === 0) return null;
  return pngButton(state, range, `${layer}: ${title}`, data.headroom.meta.layers[0]?.format ?? "", t);
}

/** The layer before or after the open one, in order of execution. @param {State} state @param {-1 | 1} to @returns {string | null} */
function neighbour(state, to) {
  const layers = state.heat.data?.meta.layers ?? [];
  const at = layers.findIndex((layer) => layer.name === state.route.layer);
  return at < 0 ? null : (layers[at + to]?.name ?? null);
}

/** @param {State} state @param {Context} context */
function neighbours(state, { t, act }) {
  return h(
    "span",
    { class: "neighbours" },
    /** @type {const} */ ([[-1, "\u2190", "drawer.previous", "["], [1, "\u2192", "drawer.next", "]"]]).map(([to, arrow, word, key]) => {
      const name = neighbour(state, to);
      const title = `${t(word)} (${key})`;
      return h("button", { type: "button", class: "plain", key: word, title, "aria-label": title, disabled: name === null, onclick: () => name !== null && act.navigate({ layer: name }) }, arrow);
    }),
  );
}

/** @param {State} state @param {Context} context */
function traces(state, context) {
  const { t } = context;
  const { data } = state.layer;
  const range = visibleRange(state);
  if (data === null || range === null) return null; // the histogram above says why
  const rows = [data.series, data.ratio].flatMap(({ steps, cell, traces }) => traces.map((trace) => ({ steps, cell, trace })));
  if (rows.length === 0) return h("p", { class: "note thin" }, t("drawer.no_series"));
  const words = Object.fromEntries(rows.map(({ trace }) => [trace.name, t(`metric.${trace.name}`)]));
  return h("div", {
    class: "traces",
    role: "img",
    "aria-label": t("drawer.series_label", { layer: state.route.layer ?? "", metrics: Object.values(words).join(", ") }),
    island: { create: createTraces, data: { rows, range, theme: state.theme, mark: state.cursor?.step ?? state.route.step, zoom: context.act.navigate, words, bitsUnit: t("unit.bits") } },
  });
}

/** The button takes the focus as the drawer opens. @param {HTMLElement} element @returns {import("./dom.js").Island} */
function takeFocus(element) {
  requestAnimationFrame(() => element.focus());
  return { update: (text) => (element.textContent = text) };
}

/** @param {State} state @param {Context} context */
function picture(state, context) {
  const { t } = context;
  const { data } = state.layer;
  const note = pendingNote(context, state.layer, t("what.histogram"));
  if (note || data === null) return note;
  const range = visibleRange(state);
  if (range === null || data.histogram.columns.length === 0) return h("p", { class: "note thin" }, t("drawer.no_histogram"));
  if (occupied(data.histogram.columns) === null) return h("p", { class: "note thin" }, t("drawer.histogram_blank"));
  const format = formats.get(data.headroom.meta.layers[0]?.format ?? "") ?? null;
  return [
    h("div", {
      class: "histogram",
      role: "img",
      "aria-label": t("drawer.histogram_label", { layer: state.route.layer ?? "", format: format?.name ?? "\u2014" }),
      island: {
        create: createHistogram,
        data: {
          layer: data, format, range, theme: state.theme, mark: state.cursor?.step ?? state.route.step, zoom: context.act.navigate,
          words: { limit: t("hist.limit"), normal: t("hist.normal"), zero: t("hist.zero"), axis: t("hist.axis"), step: t("axis.step"), scale: t("hist.scale") },
        },
      },
    }),
    h("p", { class: "muted" }, t("hist.how")),
  ];
}
