/** What happens on the tab of devices: the last five minutes come live, longer stretches are pooled by the server. */

import { getJson, runPath } from "./api.js";
import { EMPTY_CARDS, inOrder } from "./data/cards.js";
import { seriesFrom } from "./data/series.js";
import { createLoads } from "./loads.js";
import { currentRun } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {"history" | "card" | "times" | "phases"} Slot */

/** Cells of a figure over the stretch that is shown. */
const POINTS = 240;

/** How often a pooled stretch is asked for anew while readings come: about a cell of it. */
const AGAIN_MS = { "": 10_000, hour: 15_000, all: 30_000 };

/**
 * @param {import("./data/store.js").Store<State>} store
 * @param {Pick<import("./controller.js").Controller, "hear" | "reload">} controller
 */
export function createCards(store, { hear, reload }) {
  let shownFor = "";
  let news = false;
  let loadedAt = 0;

  /** @param {Partial<import("./data/cards.js").CardsState>} change */
  const set = (change) => store.set({ cards: { ...store.get().cards, ...change } });
  const load = createLoads({
    get: (/** @type {Slot} */ slot) => /** @type {import("./state.js").Load<any>} */ (store.get().cards[slot]),
    set: (slot, value) => set({ [slot]: value }),
    unauthorised: reload,
    keeps: true,
  });
  hear((message) => {
    if (message.type === "resync") shownFor = "";
    if (message.type === "devices" || message.type === "scalars") news = true;
  });

  /** @param {State} state */
  function loadAll({ route, detail, devices }) {
    news = false;
    loadedAt = Date.now();
    const { run, own, from, to } = route;
    const span = own["span"] ?? "";
    const newest = devices.data?.at(-1);
    const since = span === "hour" && newest ? newest.time_ns / 1e9 - 3600 : null;
    const figures = own["figure"] === "vram" ? "vram_used_bytes" : own["figure"] || "busy_percent";
    if (span !== "") void load("history", (signal) => getJson(runPath(run, "/devices", { points: POINTS, from: since, figures }), signal));
    const rank = (own["card"] ?? "").split(" ")[0] ?? "";
    if (span !== "" && /^\d{1,6}$/.test(rank)) void load("card", (signal) => getJson(runPath(run, "/devices", { points: POINTS, from: since, rank }), signal));
    void load("times", (signal) => getJson(runPath(run, "/step_times", { points: 400 }), signal));
    const phases = Object.keys(detail.data?.scalars ?? {}).filter((name) => name.startsWith("phase/"));
    if (phases.length === 0) return;
    void load("phases", async (signal) => {
      const found = (await getJson(runPath(run, "/scalars", { names: phases.join(","), from, to, points: POINTS }), signal)).map(seriesFrom);
      return inOrder(phases).flatMap((name) => found.filter((/** @type {import("./data/series.js").Series} */ one) => one.name === name));
    });
  }

  /** Loads when the run, the stretch, the figure, the card or the link is another one, and as readings come. @param {State} state */
  function follow(state) {
    const { route, session, link } = state;
    const run = currentRun(state);
    if (route.page !== "run" || route.tab !== "devices" || !session?.scope || !run || state.detail.data === null || state.devices.data === null) return void (shownFor = "");
    const span = /** @type {keyof typeof AGAIN_MS} */ (route.own["span"] ?? "");
    const now = JSON.stringify([run.name, span, route.own["figure"], route.own["card"], run.attempt, link.status === "open" ? link.since : 0, route.from, route.to]);
    if (now !== shownFor) {
      const [formerRun, formerSpan, formerFigure, formerCard] = shownFor === "" ? [] : JSON.parse(shownFor);
      shownFor = now;
      if (formerRun !== run.name) set(EMPTY_CARDS);
      else set({ cursor: null, ...(formerSpan !== span || formerFigure !== route.own["figure"] ? { history: EMPTY_CARDS.history } : {}), ...(formerSpan !== span || formerCard !== route.own["card"] ? { card: EMPTY_CARDS.card } : {}) });
      return loadAll(store.get());
    }
    if (link.status === "open" && !document.hidden && news && Date.now() - loadedAt > AGAIN_MS[span]) loadAll(state);
  }

  return {
    follow,
    /** Everything anew, at the next change. */
    again: () => void (shownFor = ""),
    /** @param {{ row: number, column: number } | null} cursor over the heat map */
    point: (cursor) => set({ cursor }),
  };
}
