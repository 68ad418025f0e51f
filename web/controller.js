/** What happens: loads on navigation, merges live messages, carries out what a person asks for. */

import { ApiError, getJson, runPath, send } from "./api.js";
import { float32 } from "./data/fsb1.js";
import { mergeColumns } from "./data/grid.js";
import { withAlert } from "./data/health.js";
import { SCALARS } from "./data/overview-series.js";
import { RUNS, heatQuery } from "./data/paths.js";
import { AUTO_KIND, formatRoute, kindOf, parseRoute } from "./data/route.js";
import { HEAT_TABS } from "./data/tab-fields.js";
import { appendPoints, emptySeries, seriesFrom } from "./data/series.js";
import { fetchGrid, fetchLayer } from "./grids.js";
import { createLive } from "./live.js";
import { createLoads } from "./loads.js";
import { IDLE, RUN_SLOTS, afterEvents, currentRun } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./data/route.js").Route} Route */
/** @typedef {"runs" | "detail" | "alerts" | "devices" | "series" | "heat" | "layer"} Slot */

const DEVICE_SECONDS = 300;

/** What is loaded for one run. @type {readonly Slot[]} */
const RUN_LOADS = ["detail", "alerts", "devices", "series", "heat", "layer"];

/** Histograms have no live feed: an open drawer asks again so often while columns come. */
const LAYER_REFRESH_MS = 5000;

/**
 * The address with a change. It starts from the present one: two changes may come before the page has been drawn anew.
 * @param {Partial<Route>} change of `own` the fields that change
 */
function changed(change) {
  const here = parseRoute(location.hash);
  return formatRoute({ ...here, ...change, own: { ...here.own, ...change.own } });
}

/** @param {import("./data/store.js").Store<State>} store */
export function createController(store) {
  /** Live parts that came while what they belong to was on its way: its answer may be from before them. @type {Record<"runs" | "alerts" | "heat" | "series", (() => void)[]>} */
  const backlog = { runs: [], alerts: [], heat: [], series: [] };
  /** Whether live parts still have to prove that they go on where the loaded history ends. */
  const unproven = { heat: true, series: true };
  let layerLoadedAt = 0;
  /** Tabs that want to hear live messages of the open run. @type {Set<(message: any) => void>} */
  const ears = new Set();
  const live = createLive({ onMessage, onBlock, onLink: (link) => store.set({ link }), onOpen: (again) => again && reload(), onRefused: loadSession });

  const loadSlot = createLoads({
    get: (/** @type {Slot} */ slot) => store.get()[slot],
    set: (slot, value) => store.set({ [slot]: value }),
    unauthorised: loadSession,
  });

  /** @param {Slot} slot @param {(signal: AbortSignal) => Promise<any>} fetchData */
  async function load(slot, fetchData) {
    const fresh = await loadSlot(slot, fetchData);
    if (fresh && slot in backlog) for (const merge of backlog[/** @type {keyof typeof backlog} */ (slot)].splice(0)) merge();
  }

  /** @param {...("heat" | "layer")} slots of what is shown no more, nor is what is on its way */
  function clear(...slots) {
    for (const slot of slots) loadSlot.drop(slot);
    store.set(Object.fromEntries(slots.map((slot) => [slot, IDLE])));
  }

  async function loadSession() {
    try {
      const session = await getJson("/api/v1/session");
      store.set({ session, sessionError: null });
      if (session.scope === null) live.close();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      store.set({ sessionError: error });
    }
  }

  const loadRuns = () => load("runs", (signal) => getJson(RUNS, signal));

  function loadSeries() {
    const { run, from, to } = store.get().route;
    return load("series", async (signal) => {
      const answer = await getJson(runPath(run, "/scalars", { names: SCALARS.join(","), from, to, points: 800 }), signal);
      return new Map(answer.map((/** @type {import("./data/series.js").SeriesAnswer} */ one) => [one.name, seriesFrom(one)]));
    });
  }

  async function loadHeat() {
    const { route } = store.get();
    if (route.kind === AUTO_KIND || !HEAT_TABS.includes(route.tab)) return;
    await load("heat", (signal) => fetchGrid(route.run, heatQuery(route), signal));
  }

  function loadLayer() {
    const { run, tab, kind, format, from, to, layer } = store.get().route;
    if (layer === null || kind === AUTO_KIND || !HEAT_TABS.includes(tab)) return clear("layer");
    layerLoadedAt = Date.now();
    const index = store.get().heat.data?.meta.layers.find((one) => one.name === layer)?.index;
    return load("layer", (signal) => fetchLayer({ run, kind, format, from, to, layer, index }, signal));
  }

  /** Settles on a kind once, so that it stays as the run goes on; the address then names it. @returns {boolean} whether it is settled */
  function settleKind() {
    const { route } = store.get();
    if (route.page !== "run" || route.kind !== AUTO_KIND) return true;
    const kind = kindOf(currentRun(store.get()));
    if (kind === AUTO_KIND) return false;
    store.set({ route: { ...route, kind } });
    history.replaceState(null, "", formatRoute({ ...route, kind }));
    return true;
  }

  /** Everything of the page again: after a gap nothing that was merged can be trusted. */
  function reload() {
    settleKind();
    store.set({ closer: false }); // its end may be in what was missed
    const listed = loadRuns();
    subscribe();
    if (store.get().route.page !== "run") return;
    // A run that nobody has heard of yet is waited for, not asked about.
    if (currentRun(store.get())) loadRun();
    else void listed.then(() => currentRun(store.get()) && (settleKind(), subscribe(), loadRun()));
  }

  function loadRun() {
    const { route } = store.get();
    if (route.page !== "run") return;
    // First what is looked at first: the server answers a few questions at a time.
    void loadHeat().then(loadLayer);
    void loadSeries();
    void load("alerts", (signal) => getJson(runPath(route.run, "/alerts"), signal));
    void load("detail", async (signal) => {
      const detail = await getJson(runPath(route.run), signal);
      store.set({ skipped: detail.skipped_steps.map((/** @type {{ step: number }} */ skipped) => skipped.step) });
      return detail;
    });
    void load("devices", (signal) => getJson(runPath(route.run, "/devices", { seconds: DEVICE_SECONDS }), signal));
  }

  function subscribe() {
    const { page, run, tab, kind, metric, format } = store.get().route;
    unproven.heat = unproven.series = true;
    const heat = kind === AUTO_KIND || !HEAT_TABS.includes(tab) ? null : { kind, metric, format };
    live.subscribe(page === "run" ? { type: "subscribe", run, heat } : { type: "unsubscribe" });
  }

  /** @param {Route} wanted from the address */
  function onRoute(wanted) {
    const before = store.get().route;
    const moved = wanted.run !== before.run || wanted.page !== before.page;
    if (moved) for (const slot of RUN_LOADS) loadSlot.drop(slot);
    store.set({ route: wanted, ...(moved ? RUN_SLOTS : {}) });
    const settled = settleKind();
    const { route } = store.get();
    const differs = (/** @type {readonly (keyof Route)[]} */ keys) => keys.some((key) => route[key] !== before[key]);
    if (moved) {
      backlog.series.length = 0; // a scalar part was checked on arrival, the others name their run themselves
      return reload();
    }
    if (route.page !== "run" || !settled) return;
    const zoomed = differs(["from", "to"]);
    const came = HEAT_TABS.includes(route.tab) !== HEAT_TABS.includes(before.tab);
    const pictured = came || differs(["kind", "metric", "format"]);
    if (pictured) {
      clear("heat");
      subscribe();
    }
    if (pictured || differs(["layer"])) clear("layer");
    if (zoomed || pictured) void loadHeat();
    if (zoomed) void loadSeries();
    if (zoomed || pictured || differs(["layer"])) void loadLayer();
  }

  /** @param {any} message */
  function onMessage(message) {
    const state = store.get();
    if (message.type === "welcome" || message.type === "alive") return store.set({ skew: Date.parse(message.server_time) - Date.now() });
    const late = message.type === "alert" ? "alerts" : message.type === "run" || message.type === "gone" ? "runs" : null;
    if (late !== null && state[late].status === "loading") return void backlog[late].push(() => onMessage(message));
    if (message.type === "gone") return store.set({ runs: { ...state.runs, data: (state.runs.data ?? []).filter((run) => run.name !== message.run) } });
    if (message.type === "run") {
      const runs = state.runs.data ?? [];
      const before = runs.find((run) => run.name === message.run.name);
      // A restart rewrites steps that are drawn already.
      if (before && before.attempt !== message.run.attempt && before.name === state.route.run) return reload();
      const data = before ? runs.map((run) => (run.name === message.run.name ? message.run : run)) : [message.run, ...runs];
      store.set({ runs: { ...state.runs, data } });
      const open = state.route.kind === AUTO_KIND && settleKind();
      if (message.run.name === state.route.run && (!before || open)) {
        subscribe(); // the server could not, before the run was there
        loadRun();
      }
      return;
    }
    if (message.run !== state.route.run || state.route.page !== "run") return;
    for (const ear of ears) ear(message);
    if (message.type === "scalars") onScalars(message.points);
    else if (message.type === "devices") {
      const oldest = (Date.now() + (state.skew ?? 0) - DEVICE_SECONDS * 1000) * 1e6;
      const kept = (state.devices.data ?? []).filter((sample) => sample.time_ns > oldest);
      store.set({ devices: { ...state.devices, data: [...kept, ...message.samples] } });
    } else if (message.type === "events") store.set(afterEvents(state, message.events));
    else if (message.type === "alert") store.set({ alerts: { ...state.alerts, data: withAlert(state.alerts.data ?? [], message.alert) } });
    else if (message.type === "layers") void loadHeat();
    else if (message.type === "resync") reload();
  }

  /** @param {Record<string, [number, import("./data/json.js").JsonNumber][]>} points */
  function onScalars(points) {
    const { series, route, seriesRev } = store.get();
    if (series.status === "loading") return void backlog.series.push(() => onScalars(points));
    if (series.data === null || route.to !== null) return;
    for (const [name, values] of Object.entries(points)) {
      if (!SCALARS.includes(name)) continue;
      const held = series.data.get(name) ?? emptySeries(name);
      const last = held.steps.at(-1);
      if (unproven.series && last !== undefined && (values[0]?.[0] ?? 0) > last + held.cell) {
        unproven.series = false;
        return void loadSeries();
      }
      series.data.set(name, held);
      appendPoints(held, values);
    }
    unproven.series = false;
    store.set({ seriesRev: seriesRev + 1 });
  }

  /** @param {import("./data/fsb1.js").Block} block */
  function onBlock({ meta, arrays }) {
    const { heat, route, heatRev } = store.get();
    const wanted = meta["run"] === route.run && meta["kind"] === route.kind && meta["metric"] === route.metric && meta["format"] === route.format;
    if (!wanted || route.to !== null) return;
    if (heat.status === "loading") return void backlog.heat.push(() => onBlock({ meta, arrays }));
    if (heat.data === null) return;
    const values = float32({ meta, arrays }, "values").data;
    const first = Number(meta["first_step"]);
    // What came between the answer and the subscription is in neither. Later gaps are the agent's own: it may sample.
    const torn = unproven.heat && heat.data.columns > 0 && first > heat.data.last + 1;
    unproven.heat = false;
    const known = mergeColumns(heat.data, first, /** @type {number[]} */ (meta["layers"]), values);
    store.set({ heatRev: heatRev + 1 });
    if (torn || !known) void loadHeat();
    if (route.layer !== null && Date.now() - layerLoadedAt > LAYER_REFRESH_MS) void loadLayer();
  }

  return {
    onRoute,
    reload,
    offline: live.drop,
    /** @param {(message: any) => void} ear hears the live messages of the open run; "resync": everything has to be asked for again */
    hear: (ear) => void ears.add(ear),
    retry: () => (store.get().session === null ? void start() : (live.retry(), reload())),
    start,
    /** @param {Partial<Route>} change */
    navigate: (change) => void (location.hash = changed(change)),
    /** As `navigate`, without a step of its own on the way back: for what is typed. @param {Partial<Route>} change */
    replace: (change) => location.replace(changed(change)),
    /** @param {Partial<Route>} change as a link that can be opened elsewhere */
    link: (change) => formatRoute({ ...store.get().route, ...change }),
    /** @param {State["cursor"]} cursor */
    point: (cursor) => store.set({ cursor }),
    /** @param {string} token */
    signIn: (token) => attempt(() => send("POST", "/api/v1/session", { token }), start),
    /** Have the agents of the open run read everything for a while. @param {number} steps */
    lookCloser: (steps) => attempt(() => send("POST", runPath(store.get().route.run, "/focus"), { steps }), () => {}),
    signOut: () => attempt(() => send("DELETE", "/api/v1/session"), start),
    /** @param {string | number} id */
    acknowledge(id) {
      const { run } = store.get().route;
      return attempt(
        () => send("POST", `/api/v1/alerts/${encodeURIComponent(id)}/acknowledge`),
        () => load("alerts", (signal) => getJson(runPath(run, "/alerts"), signal)),
      );
    },
  };

  async function start() {
    await loadSession();
    const { session } = store.get();
    if (session === null || session.scope === null) return;
    live.open();
    reload();
  }

  /** @param {() => Promise<void>} action @param {() => unknown} then */
  async function attempt(action, then) {
    try {
      await action();
      store.set({ notice: null });
      await then();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      store.set({ notice: error });
    }
  }
}

/** @typedef {ReturnType<typeof createController>} Controller */
