/** Traces under one axis of steps, beside them a column or the drawer of a layer. */

import { gutterFor } from "../../data/geometry.js";
import { visibleRange } from "../../state.js";
import { h } from "../dom.js";
import { drawer } from "../drawer.js";
import { empty } from "../notes.js";
import { axisBar } from "./axis-bar.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../dom.js").Child} Child */

/**
 * @param {State} state @param {Context} context
 * @param {(range: import("../../data/geometry.js").Range) => Child[]} traces @param {Child} [side] null: the traces take its place
 */
export function bench(state, context, traces, side = null) {
  const range = visibleRange(state);
  const open = state.route.layer !== null;
  const column = open ? drawer(state, context) : side;
  return h(
    "div",
    { class: `bench${open ? " with-drawer" : column === null ? " alone" : ""}` },
    h(
      "div",
      { class: "stack", style: { "--gutter": `${gutterFor(state.width)}px` } },
      range === null ? empty(context.t("run.no_steps"), context.t("run.no_steps_hint")) : [axisBar(state, range, context), ...traces(range)],
    ),
    column,
  );
}
