/** One line of the list; on a phone a card. */

import { AUTO_KIND, HOME } from "../../data/route.js";
import { silentSeconds } from "../../state.js";
import { h } from "../dom.js";
import { alertCounts, chipCell, headroomCell, lossCell, precisionCell, progressCell, stateCell, timeCell } from "./cells.js";
import { WIDE_PX, tagsOf } from "./tags.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../data/types.js").RunItem} RunItem */
/** @typedef {import("../../main.js").Context} Context */

/** @typedef {{ index: number, picked: readonly string[], known: readonly string[], card: boolean }} Around index: in the whole list, from 1, the head being the first; known: tags of all runs */

/** Rows as they were drawn: of a list of ended runs nothing changes from second to second. @type {WeakMap<RunItem, { of: string, node: import("../dom.js").VElement }>} */
const drawn = new WeakMap();

/** @param {RunItem} run @param {Around} around @param {State} state @param {Context} context */
export function row(run, around, state, context) {
  if (state.list.editing === run.name) return make(run, around, state, context);
  const { index, picked, card } = around;
  const moment = run.state === "live" ? [state.now, silentSeconds(state, run) !== null] : new Date(state.now).toDateString();
  const of = JSON.stringify([index, picked.includes(run.name), card, state.width < WIDE_PX, state.language, state.session?.scope, state.route.own["tag"], moment]);
  const before = drawn.get(run);
  if (before?.of === of) return before.node;
  const node = make(run, around, state, context);
  drawn.set(run, { of, node });
  return node;
}

/** @param {RunItem} run @param {Around} around @param {State} state @param {Context} context */
function make(run, { index, picked, known, card }, state, context) {
  const { t, act } = context;
  // As cards the cells are no table to the browser any more; to a screen reader they stay one.
  const role = (/** @type {string} */ name) => (card ? name : undefined);
  const cell = (/** @type {string} */ name, /** @type {import("../dom.js").Child[]} */ ...children) => h("td", { class: name, role: role("cell") }, h("span", { class: "lines" }, children));
  const chosen = picked.includes(run.name);
  return h(
    "tr",
    { key: run.name, role: role("row"), "aria-rowindex": index, class: `state-${run.state}${chosen ? " chosen" : ""}${run.archived_at === null ? "" : " archived"}` },
    h("td", { class: "pick", role: role("cell") }, h("input", { type: "checkbox", "aria-label": t("runs.pick", { run: run.name }), checked: chosen, onchange: () => act.list.pick(run.name) })),
    h(
      "th",
      { class: "run", scope: "row", role: role("rowheader") },
      h(
        "span",
        { class: "lines" },
        h("a", { href: act.link({ ...HOME, page: "run", run: run.name, kind: AUTO_KIND }), title: run.name }, h("bdi", null, run.name)),
        h("span", { class: "second" }, stateCell(run, state, context), run.archived_at === null ? null : h("span", { class: "muted" }, t("runs.is_archived")), tagsOf(run, known, state, context)),
      ),
    ),
    cell("headroom figure", headroomCell(run, context)),
    h("td", { class: "alerts-cell", role: role("cell") }, alertCounts(run, t)),
    cell("progress figure", progressCell(run, state, context)),
    h("td", { class: "loss figure", role: role("cell") }, h("span", { class: "loss-line" }, lossCell(run))),
    cell("chip", chipCell(run), precisionCell(run, context)),
    cell("time figure", timeCell(run, state, context)),
  );
}
