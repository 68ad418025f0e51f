/** What the address holds for one page or one tab of a run alone, beside the fields that every view of a run shares. */

// Imports nothing: the address is read before anything else is there.

/** Tabs of a run, in the order they are offered. */
export const RUN_TABS = ["overview", "layers", "scaler", "devices", "config"];

/** Tabs that show the heat map of the layers, and so have it followed. */
export const HEAT_TABS = ["overview", "layers"];

/** What the layers can be grouped and sorted by. */
export const GROUPS = ["block", "type", "precision"];
export const LAYER_SORTS = ["name", "worst"];

/** What the list of runs can be narrowed to. */
export const ALERT_FILTERS = ["open", "critical", "none"];
export const ARCHIVE_FILTERS = ["with", "only"];

/** What it can be sorted by, each with the direction that a first click gives: what matters first. @type {Readonly<Record<string, "asc" | "desc">>} */
export const RUN_SORTS = { name: "asc", state: "asc", tags: "asc", headroom: "asc", layer: "asc", alerts: "desc", step: "desc", left: "asc", loss: "asc", chip: "asc", precision: "asc", started: "desc", duration: "desc" };

/** What the heat map of the cards may show beside the busy share, which is the default. */
const FIGURES = ["vram", "memory_busy_percent", "power_watts", "temperature_celsius", "core_clock_mhz", "memory_clock_mhz"];

/**
 * Of each place its fields; "" is always allowed and means the default. A list: the only other values; a pattern: what others look like; null: anything.
 * @typedef {Readonly<Record<string, readonly string[] | RegExp | null>>} Fields
 */

/** @type {Readonly<Record<string, Fields>>} page, or tab of a run -> fields */
const FIELDS = {
  runs: {
    find: null,
    state: /^(live|stalled|finished|failed|lost)(,(live|stalled|finished|failed|lost)){0,4}$/,
    tag: null,
    chip: null,
    precision: null,
    alerts: ALERT_FILTERS,
    archived: ARCHIVE_FILTERS,
    sort: Object.keys(RUN_SORTS),
    order: ["asc", "desc"],
    pick: null,
  },
  compare: { runs: null, x: ["tokens", "time"], smooth: ["10", "50"], of: ["absmax"], a: /^[0-7]$/, b: /^[0-7]$/ },
  overview: {},
  layers: { filter: null, group: GROUPS, sort: LAYER_SORTS, open: null },
  scaler: { operand: null, find: null, by: ["layers"] },
  devices: { figure: FIGURES, span: ["hour", "all"], card: null },
  config: { against: null, show: ["all"], find: null, attempt: /^-?\d{1,9}$/ },
};

/** @typedef {Readonly<Record<string, string>>} Own every field of the place, "" where nothing was chosen */

/** @param {string} place @param {(name: string) => string | null | undefined} read @returns {Own} what it does not understand is "" */
export function ownFields(place, read) {
  /** @type {Record<string, string>} */
  const own = {};
  for (const [name, known] of Object.entries(FIELDS[place] ?? {})) {
    const value = read(name) ?? "";
    own[name] = known === null || (known instanceof RegExp ? known.test(value) : known.includes(value)) ? value : "";
  }
  return own;
}
