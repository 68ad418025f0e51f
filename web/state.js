/** Everything the page shows follows from this one object. */

import { overtaken } from "./data/attempts.js";
import { EMPTY_CARDS } from "./data/cards.js";
import { EMPTY_DESK } from "./data/desk.js";
import { followEnd } from "./data/geometry.js";
import { looksCloser } from "./data/overhead.js";
import { DISAGREEMENTS, withDisagreements } from "./data/ranks.js";
import { EMPTY_SCALER } from "./data/scaler.js";

/** @typedef {import("./api.js").ApiError} ApiError */
/** @typedef {import("./data/types.js").RunItem} RunItem */
/** @typedef {import("./data/types.js").RunDetail} RunDetail */
/** @typedef {import("./data/types.js").DeviceSample} DeviceSample */
/** @typedef {import("./data/types.js").Session} Session */
/** @typedef {import("./data/health.js").Alert} Alert */
/** @typedef {import("./data/grid.js").Grid} Grid */
/** @typedef {import("./data/series.js").Series} Series */
/** @typedef {import("./data/histogram.js").HistogramAnswer} HistogramAnswer */
/**
 * Data on its way: `data` stays while a newer answer loads.
 * @template T
 * @typedef {{ status: "idle" | "loading" | "ready" | "error", data: T | null, error: ApiError | null }} Load
 */
/** @typedef {{ name: string, gone: boolean, alerts: Alert[], series: Map<string, Series> }} Curves of one run; gone: there is no such run */
/**
 * @typedef {object} LayerData
 * @property {HistogramAnswer} histogram
 * @property {Grid} headroom
 * @property {Grid} absmax
 * @property {import("./data/layer-series.js").LayerSeries} series
 * @property {import("./data/layer-series.js").LayerSeries} ratio of updates to weights
 */
/** @typedef {{ step: number, row: number }} Cursor row -1: on a chart, no layer */
/**
 * @typedef {object} State
 * @property {import("./data/route.js").Route} route
 * @property {number} now milliseconds of the wall clock, once a second
 * @property {number} width of the window
 * @property {import("./data/words.js").Language} language
 * @property {import("./data/colour.js").Theme} theme
 * @property {Session | null} session null: not asked yet
 * @property {ApiError | null} sessionError
 * @property {import("./live.js").Link} link
 * @property {number | null} skew server's clock minus ours, milliseconds; null: not told yet
 * @property {Load<RunItem[]>} runs
 * @property {Load<RunDetail>} detail
 * @property {Load<Alert[]>} alerts
 * @property {Load<DeviceSample[]>} devices
 * @property {Load<Map<string, Series>>} series changed in place; `seriesRev` tells
 * @property {number} seriesRev
 * @property {Load<Grid>} heat changed in place; `heatRev` tells
 * @property {number} heatRev
 * @property {Load<number[]>} newest headroom of each layer, loaded only where no heat map has it
 * @property {number[]} skipped steps
 * @property {boolean} closer whether the agent reads everything at the moment
 * @property {Load<LayerData>} layer
 * @property {Cursor | null} cursor under the pointer or the keyboard
 * @property {ApiError | null} notice what the last action came back with
 * @property {import("./data/desk.js").DeskState} desk the page of alerts
 * @property {{ other: Load<RunDetail>, copied: string }} config the run compared with, and what was copied last
 * @property {{ curves: Load<Curves[]>, apart: Load<import("./data/compare.js").HeatAnswer[]> }} compare
 * @property {import("./data/scaler.js").ScalerState} scaler the tab of the loss scaler
 * @property {import("./data/cards.js").CardsState} cards the tab of devices
 * @property {import("./run-list.js").RunListState} list the page of runs
 * @property {boolean} plotly whether the chart library is there
 * @property {Readonly<Record<string, import("./places.js").View>>} views of the places that have come
 * @property {{ place: string, error: ApiError } | null} awaited the place that was opened and has not come, and why
 */

/** @type {import("./run-list.js").RunListState} */
const EMPTY_RUN_LIST = { first: 0, screen: 20, editing: null, draft: "", busy: 0, error: null, left: {} };

/** @type {{ status: "idle", data: null, error: null }} */
export const IDLE = { status: "idle", data: null, error: null };

/** @param {Pick<State, "language" | "theme" | "width" | "route">} given @returns {State} */
export function initialState(given) {
  return {
    now: Date.now(),
    session: null,
    sessionError: null,
    link: { status: "off", since: Date.now(), retryAt: null },
    skew: null,
    runs: IDLE,
    detail: IDLE,
    alerts: IDLE,
    devices: IDLE,
    series: IDLE,
    seriesRev: 0,
    heat: IDLE,
    heatRev: 0,
    newest: IDLE,
    skipped: [],
    closer: false,
    layer: IDLE,
    cursor: null,
    notice: null,
    desk: EMPTY_DESK,
    config: { other: IDLE, copied: "" },
    compare: { curves: IDLE, apart: IDLE },
    scaler: EMPTY_SCALER,
    cards: EMPTY_CARDS,
    list: EMPTY_RUN_LIST,
    plotly: false,
    views: {},
    awaited: null,
    ...given,
  };
}

/** Slots that belong to one run and empty when another is opened. */
export const RUN_SLOTS = { detail: IDLE, alerts: IDLE, devices: IDLE, series: IDLE, heat: IDLE, newest: IDLE, layer: IDLE, skipped: [], closer: false, cursor: null, notice: null };

/** @param {State} state @returns {RunItem | null} */
export function currentRun(state) {
  return state.runs.data?.find((run) => run.name === state.route.run) ?? null;
}

/**
 * What follows from events that the agent told of.
 * @param {State} state @param {any[]} events @returns {Partial<State>}
 */
export function afterEvents(state, events) {
  const steps = events.filter(({ kind }) => kind === "skipped").map(({ step }) => step);
  /** @type {Partial<State>} */
  const change = { skipped: [...new Set([...state.skipped, ...steps])], closer: looksCloser(state.closer, events) };
  const told = events.filter(({ kind }) => DISAGREEMENTS.includes(kind));
  const attempt = currentRun(state)?.attempt ?? 1;
  const saved = events.filter(({ kind }) => kind === "checkpoint").map((event) => ({ ...event, attempt }));
  const { data } = state.detail;
  if (data === null || told.length + saved.length === 0) return change;
  const checkpoints = [...data.checkpoints, ...saved];
  return { ...change, detail: { ...state.detail, data: { ...data, checkpoints, checkpoints_saved: data.checkpoints_saved + saved.length, ranks_disagree: withDisagreements(data.ranks_disagree, told) } } };
}

/** What the step axis spans. @param {State} state @returns {import("./data/geometry.js").Range | null} null: no step yet */
export function visibleRange(state) {
  const { from, to } = state.route;
  const loss = state.series.data?.values().next().value;
  const last = Math.max(state.heat.data?.last ?? -1, (currentRun(state)?.steps ?? 0) - 1, (loss?.steps.at(-1) ?? -1) + (loss?.cell ?? 1) - 1);
  if (to === null && last < 0) return null;
  const end = to ?? last;
  const start = Math.min(from ?? 0, end);
  return { from: start, to: to === null && currentRun(state)?.state === "live" ? followEnd(start, end) : end };
}

/** The word for the way back from a stretch of steps; a run that is over is followed no more. @param {State} state */
export function wayBack(state) {
  const goesOn = ["live", "stalled"].includes(currentRun(state)?.state ?? "");
  return state.route.to !== null && goesOn ? "axis.follow" : "axis.whole";
}

/** Alerts on steps that are drawn, not on those an earlier attempt made. @param {State} state @returns {Alert[]} */
export function alertsInView(state) {
  const attempts = state.detail.data?.attempts ?? [];
  return (state.alerts.data ?? []).filter((alert) => !overtaken(alert, attempts));
}

/**
 * When the present attempt began. `n` is null where it is the only one, or not known yet.
 * @param {State} state @param {RunItem} run @returns {{ n: number | null, started: number | null }} milliseconds
 */
export function presentAttempt(state, run) {
  const attempt = run.attempt > 1 ? state.detail.data?.attempts.find(({ n }) => n === run.attempt) : undefined;
  const started = attempt?.started_at ?? run.started_at;
  return { n: attempt?.n ?? null, started: started === null ? null : Date.parse(started) };
}

/**
 * Seconds without a sign of life from a run that is said to be live, else null. Without a link nobody can tell: those up to when it was lost.
 * @param {State} state @param {RunItem} run
 */
export function silentSeconds(state, run) {
  if (run.state !== "live" || run.heartbeat_at === null || state.skew === null) return null;
  const now = state.link.status === "open" ? state.now : state.link.since;
  const silent = (now + state.skew - Date.parse(run.heartbeat_at)) / 1000;
  return silent > SILENT_S ? silent : null;
}

/** The server's clock, milliseconds. @param {Pick<State, "now" | "skew">} state */
export function serverNow({ now, skew }) {
  return now + (skew ?? 0);
}

/** The agent's heartbeat comes every 10 s: one may be late, two are missing. */
const SILENT_S = 25;

