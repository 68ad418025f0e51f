/** Layer by layer: the heat map with room for all of them. */

import { heat } from "../heat.js";
import { bench } from "./layout.js";

/** @param {import("../../state.js").State} state @param {import("../../main.js").Context} context */
export function layersTab(state, context) {
  return bench(state, context, (range) => [heat(state, range, context)]);
}
