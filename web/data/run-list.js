/** Which runs of the list are shown, in which order, which of them are on the screen, and which are picked. */

import { number } from "./json.js";
import { chipOf, precisionWord, secondsLeft, lasted } from "./run-progress.js";
import { RUN_SORTS } from "./tab-fields.js";

/** @typedef {import("./types.js").RunItem} RunItem */
/** @typedef {import("./tab-fields.js").Own} Own */

/** As many as a comparison shows. */
export const MOST_PICKED = 8;

export const RUN_STATES = ["live", "stalled", "finished", "failed", "lost"];

/** Heights of a row in pixels, as style/runs.css has them: on a phone a row is a card. */
export const ROW_PX = 52;
export const CARD_PX = 92;
export const PHONE_PX = 720;

/** Rows kept above and below the screen, so that the keyboard and a flick find them. */
const SPARE_ROWS = 12;

/** Below it every row is there: the browser's own search then finds all. */
const MOST_WHOLE = 80;

/**
 * @param {readonly RunItem[]} runs @param {string} find words that must all be in the name, the state, a tag, the chip, the precision or the worst layer
 */
export function found(runs, find) {
  const words = find.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) return [...runs];
  return runs.filter((run) => {
    const text = `${run.name} ${run.state} ${run.tags.join(" ")} ${run.chips.map(({ name }) => name).join(" ")} ${precisionWord(run)} ${run.worst?.layer ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** Whether the archive's filter lets a run through. @param {RunItem} run @param {string} archived */
const inPlace = (run, archived) => archived === "with" || (run.archived_at !== null) === (archived === "only");

/** @param {RunItem} run @param {string} wanted */
function alertsFit({ alerts }, wanted) {
  if (wanted === "critical") return alerts.critical > 0;
  const open = alerts.critical + alerts.warning + alerts.info;
  return wanted === "" || (wanted === "open") === open > 0;
}

/**
 * The runs that every filter of the address lets through. Without `state` as if no state had been chosen: its buttons say how many there are of each.
 * @param {readonly RunItem[]} runs @param {Own} own @param {boolean} [anyState]
 */
export function filtered(runs, own, anyState = false) {
  const states = anyState ? [] : statesIn(own["state"] ?? "");
  const [tag, chip, precision] = [own["tag"] ?? "", own["chip"] ?? "", own["precision"] ?? ""];
  return found(runs, own["find"] ?? "").filter(
    (run) =>
      inPlace(run, own["archived"] ?? "") &&
      (states.length === 0 || states.includes(run.state)) &&
      (tag === "" || run.tags.includes(tag)) &&
      (chip === "" || run.chips.some(({ name }) => name === chip)) &&
      (precision === "" || (precision === "unmet" ? run.precision.unmet > 0 : precisionWord(run) === precision)) &&
      alertsFit(run, own["alerts"] ?? ""),
  );
}

/** Names of the filters that narrow the list. @param {Own} own */
export const narrowing = (own) => ["find", "state", "tag", "chip", "precision", "alerts"].filter((name) => (own[name] ?? "") !== "");

/** @param {string} text of the address @returns {string[]} */
export const statesIn = (text) => text.split(",").filter((state) => RUN_STATES.includes(state));

/** With the state, or without it where it was there. @param {string} text @param {string} state */
export function stateToggled(text, state) {
  const states = statesIn(text);
  return RUN_STATES.filter((one) => states.includes(one) !== (one === state)).join(",");
}

/** How many runs are in each state. @param {readonly RunItem[]} runs @returns {Map<string, number>} */
export function tallied(runs) {
  const counts = new Map(RUN_STATES.map((state) => [state, 0]));
  for (const { state } of runs) counts.set(state, (counts.get(state) ?? 0) + 1);
  return counts;
}

/** What there is to choose from, in alphabetical order. @param {readonly RunItem[]} runs */
export function offered(runs) {
  const distinct = (/** @type {string[]} */ names) => [...new Set(names)].filter((name) => name !== "").sort((a, b) => a.localeCompare(b));
  return { tags: distinct(runs.flatMap((run) => run.tags)), chips: distinct(runs.flatMap((run) => run.chips.map(({ name }) => name))), precisions: distinct(runs.map(precisionWord)) };
}

/** @param {RunItem} run */
const gravity = ({ alerts }) => alerts.critical * 1e6 + alerts.warning * 1e3 + alerts.info;

/**
 * What a run is sorted by; undefined, or "", comes last in either direction.
 * @type {Readonly<Record<string, (run: RunItem, now: number) => number | string | undefined>>}
 */
const KEYS = {
  name: (run) => run.name,
  state: (run) => RUN_STATES.indexOf(run.state),
  tags: (run) => [...run.tags].sort().join("\n"),
  headroom: (run) => number(run.worst?.headroom),
  layer: (run) => run.worst?.layer,
  alerts: gravity,
  step: (run) => run.steps,
  left: (run) => secondsLeft(run, false) ?? undefined,
  loss: (run) => number(run.last.loss),
  chip: chipOf,
  precision: precisionWord,
  started: (run) => (run.started_at === null ? undefined : Date.parse(run.started_at)),
  duration: (run, now) => lasted(run, now) ?? undefined,
};

/** The column and the direction that the address names, or those of a fresh list. @param {Own} own @returns {{ by: string, order: "asc" | "desc" }} */
export function orderOf(own) {
  const by = own["sort"] || "started";
  const natural = RUN_SORTS[by] ?? "asc";
  return { by, order: own["order"] === "asc" || own["order"] === "desc" ? own["order"] : natural };
}

/** What the address holds after a click on a column: its own direction first, then the other one. @param {Own} own @param {string} by */
export function reordered(own, by) {
  const now = orderOf(own);
  const natural = RUN_SORTS[by] ?? "asc";
  const order = now.by === by && now.order === natural ? (natural === "asc" ? "desc" : "asc") : natural;
  return { sort: by === "started" ? "" : by, order: order === natural ? "" : order };
}

/** A NaN stands before every figure of either order: it is what one looks for. @param {readonly RunItem[]} runs @param {Own} own @param {number} now milliseconds of the server's clock */
export function sorted(runs, own, now) {
  const { by, order } = orderOf(own);
  const key = KEYS[by] ?? (() => undefined);
  const sign = order === "asc" ? 1 : -1;
  const keyed = runs.map((run) => ({ run, value: key(run, now) }));
  const missing = (/** @type {unknown} */ value) => value === undefined || value === "";
  keyed.sort(({ value: a }, { value: b }) => {
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
    if (Number.isNaN(a) || Number.isNaN(b)) return Number(Number.isNaN(b)) - Number(Number.isNaN(a));
    if (typeof a === "string" && typeof b === "string") return sign * a.localeCompare(b, undefined, { numeric: true });
    return sign * (Number(a) < Number(b) ? -1 : Number(a) > Number(b) ? 1 : 0);
  });
  return keyed.map(({ run }) => run);
}

/**
 * The rows to draw: those on the screen and some around them; `first` of `all` is the uppermost on it.
 * @param {number} all @param {number} first @param {number} screen rows that fit @returns {{ from: number, to: number }} to is past the last
 */
export function windowOf(all, first, screen) {
  if (all <= MOST_WHOLE) return { from: 0, to: all };
  const from = Math.max(0, Math.min(first, all - screen) - SPARE_ROWS);
  return { from, to: Math.min(all, Math.max(0, first) + screen + SPARE_ROWS) };
}

/** @param {readonly string[]} picked @param {string} name @returns {string[]} with the name, or without it where it was there */
export function toggled(picked, name) {
  return picked.includes(name) ? picked.filter((other) => other !== name) : [...picked, name];
}

/** All that are shown, or none of them where all are picked; others stay as they are. @param {readonly string[]} picked @param {readonly string[]} shown @returns {string[]} */
export function allToggled(picked, shown) {
  const every = shown.every((name) => picked.includes(name));
  return every ? picked.filter((name) => !shown.includes(name)) : [...new Set([...picked, ...shown])];
}

/** What the server takes as a tag; "" where it takes none. @param {string} text */
export function tagIn(text) {
  const tag = text.replace(/[\s,]+/g, " ").trim();
  return tag.length <= 40 ? tag : "";
}
