/** The view's state as the fragment of the address: a link shows a colleague exactly what you see. */

import { DESK, formatDesk, parseDesk } from "./desk-route.js";
import { formats } from "./formats.js";
import { METRICS } from "./scale.js";
import { RUN_TABS, ownFields } from "./tab-fields.js";

export const KINDS = ["grad", "act", "act_in", "act_grad", "weight", "update"];

/** Stands until the run's worst headroom says which kind to look at first. */
export const AUTO_KIND = "auto";

/** The metric that only updates have. */
export const OF_UPDATES = "ratio";

/**
 * @typedef {object} Route
 * @property {"runs" | "run" | "alerts" | "compare"} page
 * @property {string} run name, "" on the list
 * @property {string} tab of a run, one of RUN_TABS
 * @property {string} kind one of KINDS, or AUTO_KIND
 * @property {string} metric
 * @property {string} format
 * @property {number | null} from first step shown; null: the run's first
 * @property {number | null} to last step shown; null: follow the run
 * @property {string | null} layer whose drawer is open
 * @property {number | null} step marked on every chart
 * @property {import("./tab-fields.js").Own} own what only this page or tab knows
 * @property {Readonly<import("./desk-route.js").Desk>} desk what the page of alerts shows
 */

/** @type {Readonly<Route>} */
export const HOME = Object.freeze({
  page: "runs",
  run: "",
  tab: "overview",
  kind: AUTO_KIND,
  metric: "headroom",
  format: "auto",
  from: null,
  to: null,
  layer: null,
  step: null,
  own: Object.freeze(ownFields("runs", () => null)),
  desk: DESK,
});

/** @param {string} hash with or without "#"; what it does not understand falls back to the defaults @returns {Route} */
export function parseRoute(hash) {
  const [path = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const fields = new URLSearchParams(query);
  const [, page, name, tab] = path.split("/");
  if (page === "alerts") return { ...HOME, page, desk: parseDesk(name, fields) };
  const comparing = page === "compare";
  const raw = comparing ? /(?:^|&)runs=([^&]*)/.exec(query)?.[1] : undefined;
  // By hand each name is encoded once and the commas stand; from formatRoute the whole list is encoded once more.
  if (raw?.includes(",")) fields.set("runs", raw.replaceAll("+", "%20"));
  const from = step(fields.get("from"));
  const to = step(fields.get("to"));
  const inRun = page === "run" && Boolean(name);
  const kind = oneOf(fields.get("kind"), KINDS, HOME.kind);
  const metric = oneOf(fields.get("metric"), Object.keys(METRICS), HOME.metric);
  const place = inRun ? oneOf(tab ?? null, RUN_TABS, HOME.tab) : HOME.tab;
  return {
    page: comparing ? "compare" : inRun ? "run" : "runs",
    run: inRun ? decode(name ?? "") : "",
    tab: place,
    kind: metric === OF_UPDATES && kind === AUTO_KIND ? "update" : kind,
    metric: fits(metric, kind) ? metric : HOME.metric,
    format: oneOf(fields.get("format"), [HOME.format, ...formats.keys()], HOME.format),
    from,
    to: from !== null && to !== null && to < from ? null : to,
    layer: fields.get("layer") || null,
    step: step(fields.get("step")),
    own: ownFields(comparing ? "compare" : inRun ? place : "runs", (field) => fields.get(field)),
    desk: DESK,
  };
}

/** @param {Route} route @returns {string} with "#" */
export function formatRoute(route) {
  if (route.page === "alerts") return formatDesk(route.desk);
  const fields = new URLSearchParams();
  for (const key of /** @type {const} */ (["kind", "metric", "format", "from", "to", "layer", "step"])) {
    const value = key === "metric" && !fits(route.metric, route.kind) ? HOME.metric : route[key];
    if (value !== null && value !== HOME[key]) fields.set(key, String(value));
  }
  const inRun = route.page === "run";
  const own = ownFields(inRun ? route.tab : route.page, (name) => route.own[name]);
  for (const [name, value] of Object.entries(own)) if (value !== "") fields.set(name, value);
  const path = inRun ? `#/run/${encodeURIComponent(route.run)}${route.tab === HOME.tab ? "" : `/${route.tab}`}` : route.page === "compare" ? "#/compare" : "#/";
  const query = fields.toString();
  return query ? `${path}?${query}` : path;
}

/**
 * The kind that `AUTO_KIND` stands for. A run that has made no step leaves it open.
 * @param {import("./types.js").RunItem | null} run @returns {string}
 */
export function kindOf(run) {
  if (run === null || (run.worst === null && run.steps === 0)) return AUTO_KIND;
  // Updates are looked at beside weights, not first.
  if (run.worst === null || run.worst.kind === "update" || !KINDS.includes(run.worst.kind)) return "grad";
  // A broken output has no bits left to show; the inputs show how it came to that.
  return run.worst.kind === "act" && run.worst.headroom === "-Infinity" ? "act_in" : run.worst.kind;
}

/** Where the two do not go together the kind stands: it is what links change. @param {string} metric @param {string} kind */
function fits(metric, kind) {
  return metric !== OF_UPDATES || kind === "update" || kind === AUTO_KIND;
}

/** @param {string} name */
function decode(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // a stray "%" typed by hand
  }
}

/** @param {string | null} text */
function step(text) {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** @param {string | null} value @param {readonly string[]} known @param {string} otherwise */
function oneOf(value, known, otherwise) {
  return value !== null && known.includes(value) ? value : otherwise;
}
