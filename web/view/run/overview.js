/** The glance: is the run healthy, and since when not. */

import { alertList } from "../alerts.js";
import { marksIn } from "../chart-marks.js";
import { devices } from "../devices.js";
import { h } from "../dom.js";
import { heat } from "../heat.js";
import { rankNotesOf } from "../rank-notes.js";
import { bench } from "./layout.js";
import { scalars } from "./scalars.js";
import { strip } from "./strip.js";

/** @param {import("../../state.js").State} state @param {import("../../main.js").Context} context */
export function overviewTab(state, context) {
  const side = h("div", { class: "side", key: "side" }, alertList(state, context), devices(state, context));
  return bench(
    state,
    context,
    (range) => {
      const marks = marksIn(state, range, context);
      return [strip(state, range, context, marks.saved), rankNotesOf(state, context), heat(state, range, context), scalars(state, range, context, marks)];
    },
    side,
  );
}
