/** The glance: is the run healthy, and since when not. */

import { alertList } from "../alerts.js";
import { charts } from "../charts.js";
import { devices } from "../devices.js";
import { h } from "../dom.js";
import { heat } from "../heat.js";
import { rankNotesOf } from "../rank-notes.js";
import { bench } from "./layout.js";
import { strip } from "./strip.js";

/** @param {import("../../state.js").State} state @param {import("../../main.js").Context} context */
export function overviewTab(state, context) {
  const side = h("div", { class: "side", key: "side" }, alertList(state, context), devices(state, context));
  return bench(state, context, (range) => [strip(state, range, context), rankNotesOf(state, context), heat(state, range, context), charts(state, range, context)], side);
}
