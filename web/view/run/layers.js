/** Layer by layer: the heat map with room for all of them, filtered, grouped and sorted. */

import { arrange, namesIn, namesText } from "../../data/arrange.js";
import { linesFor } from "../../data/geometry.js";
import { GROUPS, LAYER_SORTS } from "../../data/tab-fields.js";
import { count } from "../../data/text.js";
import { choice } from "../desk/controls.js";
import { h } from "../dom.js";
import { heat } from "../heat.js";
import { bench } from "./layout.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {ReturnType<typeof arrange>} Arranged */

/** Pixels for the lines, on a page that has little else. */
const ROOM = 900;

/** The last arrangement, which stands until something that it follows from is another. @type {{ key: readonly unknown[], arranged: Arranged } | null} */
let held = null;

/** @param {State} state @param {Context} context */
export function layersTab(state, context) {
  const { act } = context;
  const { own } = state.route;
  const open = namesIn(own["open"] ?? "");
  const change = (/** @type {Record<string, string>} */ fields) => act.navigate({ own: fields });
  const arranged = (/** @type {import("../../data/grid.js").Grid} */ grid) => {
    const key = [grid, state.heatRev, state.detail.data?.layers, own["filter"], own["group"], own["sort"], own["open"]];
    if (held === null || held.key.some((part, i) => part !== key[i])) {
      const types = new Map(state.detail.data?.layers.map((layer) => [layer.name, layer.module_type ?? ""]));
      held = { key, arranged: arrange(grid, { filter: own["filter"] ?? "", group: own["group"] ?? "", sort: own["sort"] ?? "", open }, types) };
    }
    return held.arranged;
  };
  const grid = state.heat.data;
  const now = grid === null ? null : arranged(grid);
  return bench(state, context, (range) => [
    heat(state, range, context, {
      arranged,
      room: ROOM,
      open(line, step) {
        if ("members" in line && Number(line.members) > 1) change({ open: namesText([...open, line.name]) });
        else act.navigate({ layer: line.name, step });
      },
      controls: controls(state, context, now, open, change),
    }),
  ]);
}

/**
 * @param {State} state @param {Context} context @param {Arranged | null} now @param {readonly string[]} open
 * @param {(fields: Record<string, string>) => void} change
 */
function controls(state, { t, act }, now, open, change) {
  const { own } = state.route;
  const opened = open.filter((group) => now?.groups.has(group));
  const each = now === null ? 1 : linesFor(now.lines.length, ROOM).each;
  return h(
    "div",
    { class: "layer-bar" },
    h(
      "label",
      { class: "select" },
      h("span", { class: "label" }, t("layers.filter")),
      h("input", {
        type: "search",
        class: "layer-filter",
        spellcheck: "false",
        autocomplete: "off",
        placeholder: t("layers.filter_hint"),
        value: own["filter"] ?? "",
        oninput: (/** @type {Event} */ event) => act.replace({ own: { filter: /** @type {HTMLInputElement} */ (event.currentTarget).value } }),
      }),
    ),
    choice(t("layers.group"), own["group"] ?? "", [["", t("layers.ungrouped")], ...GROUPS.map((name) => /** @type {[string, string]} */ ([name, t(`group.${name}`)]))], (group) => change({ group, open: "" })),
    choice(t("layers.sort"), own["sort"] ?? "", [["", t("layers.executed")], ...LAYER_SORTS.map((name) => /** @type {[string, string]} */ ([name, t(`sort.${name}`)]))], (sort) => change({ sort })),
    now === null
      ? null
      : h(
          "p",
          { class: "muted layer-count", role: "status" },
          t("layers.shown", { n: count(now.matched), all: count(state.heat.data?.meta.layers.length) }),
          now.lines.length < now.matched ? ` \u00b7 ${t("layers.lines", { n: count(now.lines.length) })}` : "",
          each > 1 ? ` \u00b7 ${t("layers.pooled", { n: count(each) })}` : "",
        ),
    opened.length === 0
      ? null
      : h(
          "ul",
          { class: "open-groups", "aria-label": t("layers.open_groups") },
          opened.map((group) => h("li", { key: group }, h("button", { type: "button", title: t("layers.close_group"), onclick: () => change({ open: namesText(opened.filter((other) => other !== group)) }) }, h("bdi", null, group), h("span", { "aria-hidden": "true" }, " \u00d7"), h("span", { class: "sr" }, ` ${t("layers.close_group")}`)))),
        ),
  );
}
