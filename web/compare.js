/** What happens on the page that compares runs: loads their series, alerts and layers, and again as they go on. */

import { ApiError, getJson, runPath } from "./api.js";
import { TOKENS, namesIn } from "./data/compare.js";
import { AUTO_KIND } from "./data/route.js";
import { seriesFrom } from "./data/series.js";
import { createLoads } from "./loads.js";
import { IDLE } from "./state.js";

/** @typedef {import("./state.js").State} State */

const NAMES = ["loss", "grad_norm", "loss_scale", "lr", "step_time_s", ...TOKENS];

/** Only one run has a live feed; the others' newest steps are told, and asked for this often. */
const AGAIN_MS = 2000;

/** @param {import("./data/store.js").Store<State>} store @param {() => void} reload asks again who we are when the server no longer knows */
export function createCompare(store, reload) {
  let [curvesFor, layersFor, heard] = ["", "", ""];
  let loadedAt = 0;
  const load = createLoads({
    get: (/** @type {"curves" | "apart"} */ slot) => /** @type {import("./state.js").Load<any>} */ (store.get().compare[slot]),
    set: (slot, value) => store.set({ compare: { ...store.get().compare, [slot]: value } }),
    unauthorised: reload,
  });

  /** @param {string} name @param {Record<string, string | number | null>} query @param {AbortSignal} signal */
  async function curvesOf(name, query, signal) {
    try {
      const [answer, alerts] = await Promise.all([getJson(runPath(name, "/scalars", query), signal), getJson(runPath(name, "/alerts"), signal)]);
      return { name, gone: false, alerts, series: new Map(answer.map((/** @type {import("./data/series.js").SeriesAnswer} */ one) => [one.name, seriesFrom(one)])) };
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      return noRun(name);
    }
  }

  /** @param {State} state */
  function follow({ route, session, link, runs, compare }) {
    if (route.page !== "compare" || !session?.scope || runs.data === null) return void ([curvesFor, layersFor] = ["", ""]);
    const names = namesIn(route.own["runs"] ?? "");
    const known = new Set(runs.data.map((run) => run.name));
    const stretch = route.own["x"] ? { from: null, to: null } : { from: route.from, to: route.to };
    const pair = pairOf(route.own, names.length).map((place) => names[place] ?? "").map((name) => (known.has(name) ? name : ""));
    const kind = route.kind === AUTO_KIND ? "grad" : route.kind;
    const metric = route.own["of"] || "headroom";
    const since = link.status === "open" ? link.since : "";
    const [curves, layers] = [JSON.stringify([names.map((name) => [name, known.has(name)]), stretch, since]), JSON.stringify([pair, kind, metric, route.from, route.to, Boolean(route.own["x"]), since])];
    const steps = JSON.stringify(runs.data.filter((run) => names.includes(run.name)).map((run) => [run.name, run.attempt, run.steps, run.state]));
    const late = steps !== heard && link.status === "open" && !document.hidden && Date.now() - loadedAt > AGAIN_MS;
    if (curves === curvesFor && layers === layersFor && !late) return;
    const newCurves = curves !== curvesFor || late;
    const newLayers = layers !== layersFor || late;
    const other = layers !== layersFor;
    [curvesFor, layersFor, heard, loadedAt] = [curves, layers, steps, Date.now()];
    if (other) load.drop("apart");
    if (other && compare.apart.status !== "idle") store.set({ compare: { ...store.get().compare, apart: IDLE } });
    if (newCurves) void load("curves", (signal) => Promise.all(names.map((name) => (known.has(name) ? curvesOf(name, { names: NAMES.join(","), ...stretch, points: 800 }, signal) : noRun(name)))));
    if (newLayers && pair[0] !== pair[1] && pair.every((name) => name !== "")) {
      const fields = new URLSearchParams({ what: "heatmap", kind, metric, columns: "240" });
      for (const name of pair) fields.append("run", name);
      if (!route.own["x"]) for (const end of /** @type {const} */ (["from", "to"])) if (route[end] !== null) fields.set(end, String(route[end]));
      void load("apart", (signal) => getJson(`/api/v1/compare?${fields}`, signal));
    }
  }

  return { follow };
}

/** What is left of a run that is no more. @param {string} name @returns {import("./state.js").Curves} */
const noRun = (name) => ({ name, gone: true, alerts: [], series: new Map() });

/** Which two of the list are held against one another. @param {Readonly<Record<string, string>>} own @param {number} many @returns {[number, number]} */
export function pairOf(own, many) {
  const place = (/** @type {string} */ name, /** @type {number} */ otherwise) => (own[name] && Number(own[name]) < many ? Number(own[name]) : otherwise);
  const a = place("a", 0);
  return [a, place("b", a === 1 ? 0 : 1)];
}
