/** What the heat map and the drawer of a layer ask the server for. */

import { getBlock, getJson, runPath } from "./api.js";
import { heatPath } from "./data/paths.js";
import { float32 } from "./data/fsb1.js";
import { gridFrom } from "./data/grid.js";
import { LAYER_METRICS, layerSeriesFrom } from "./data/layer-series.js";

/** Cells of a small chart. */
const POINTS = 240;

/** @param {string} run @param {Record<string, string | number | null>} query @param {AbortSignal} signal */
export async function fetchGrid(run, query, signal) {
  const block = await getBlock(heatPath(run, query), signal);
  return gridFrom(/** @type {import("./data/grid.js").HeatMeta} */ (/** @type {unknown} */ (block.meta)), float32(block, "values").data);
}

/**
 * @param {{ run: string, kind: string, format: string, from: number | null, to: number | null, layer: string, index: number | undefined }} of index: the layer's, where it is known
 * @param {AbortSignal} signal @returns {Promise<import("./state.js").LayerData>}
 */
export async function fetchLayer({ run, kind, format, from, to, layer, index }, signal) {
  const query = { kind, from, to };
  const grid = (/** @type {string} */ metric) => fetchGrid(run, { ...query, format, metric, layers: index ?? layer }, signal);
  const series = (/** @type {string} */ of, /** @type {string} */ metrics) => getJson(runPath(run, "/series", { ...query, layer, kind: of, metrics, format, points: POINTS }), signal);
  const [histogram, headroom, absmax, own, updates] = await Promise.all([
    getJson(runPath(run, "/histogram", { ...query, layer }), signal),
    grid("headroom"),
    grid("absmax"),
    series(kind, LAYER_METRICS.join(",")),
    series("update", "ratio"),
  ]);
  return { histogram, headroom, absmax, series: layerSeriesFrom(own), ratio: layerSeriesFrom(updates, ["ratio"]) };
}
