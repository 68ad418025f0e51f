/** What happens on the tab of the loss scaler: loads what it shows and keeps it fresh while the run goes on. */

import { getJson, runPath } from "./api.js";
import { EMPTY_SCALER, ROWS, operandOf, rateFrom } from "./data/scaler.js";
import { createLoads } from "./loads.js";
import { currentRun } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {"status" | "rate" | "operands" | "history"} Slot */

/** Between two loads while steps come. */
const AGAIN_MS = 2000;

/** Operands are of every layer, and are read every tenth step. */
const OPERANDS_MS = 10_000;

/** Cells of the skip rate: wide enough for a share to say something. */
const RATE_CELLS = 64;

/**
 * @param {import("./data/store.js").Store<State>} store
 * @param {Pick<import("./controller.js").Controller, "hear" | "reload">} controller
 */
export function createScaler(store, { hear, reload }) {
  let shownFor = "";
  let news = false;
  let loadedAt = 0;
  let operandsAt = 0;

  /** @param {Partial<import("./data/scaler.js").ScalerState>} change */
  const set = (change) => store.set({ scaler: { ...store.get().scaler, ...change } });
  const load = createLoads({
    get: (/** @type {Slot} */ slot) => /** @type {import("./state.js").Load<any>} */ (store.get().scaler[slot]),
    set: (slot, value) => set({ [slot]: value }),
    unauthorised: reload,
    keeps: true,
  });
  hear((message) => {
    if (message.type === "resync") shownFor = "";
    if (message.type === "scalars" || message.type === "events") news = true;
  });

  function loadSteps() {
    news = false;
    loadedAt = Date.now();
    const { run, from, to } = store.get().route;
    void load("status", (signal) => getJson(runPath(run, "/scaler", { from, to }), signal));
    void load("rate", async (signal) => rateFrom((await getJson(runPath(run, "/scalars", { names: "skipped", from, to, points: RATE_CELLS }), signal))[0]));
  }

  function loadOperands() {
    operandsAt = Date.now();
    const { run, from, to, own } = store.get().route;
    const chosen = operandOf(own["operand"] ?? "");
    void load("operands", (signal) => getJson(runPath(run, "/operands"), signal));
    if (chosen) void load("history", (signal) => getJson(runPath(run, "/operand", { ...chosen, from, to, points: 800 }), signal));
  }

  /** Loads when the run, the range, the operand or the link is another one, and as the run goes on. @param {State} state */
  function follow(state) {
    const { route, session, link } = state;
    const run = currentRun(state);
    if (route.page !== "run" || route.tab !== "scaler" || !session?.scope || !run) return void (shownFor = "");
    const now = JSON.stringify([run.name, run.attempt, link.status === "open" ? link.since : 0, route.from, route.to, route.own["operand"]]);
    if (now !== shownFor) {
      const [formerRun, , , , , formerOperand] = shownFor === "" ? [] : JSON.parse(shownFor);
      shownFor = now;
      if (formerRun !== run.name) set(EMPTY_SCALER);
      else if (formerOperand !== route.own["operand"]) set({ history: EMPTY_SCALER.history });
      loadSteps();
      return loadOperands();
    }
    if (link.status !== "open" || document.hidden || !news || route.to !== null) return;
    if (Date.now() - loadedAt > AGAIN_MS) loadSteps();
    if (Date.now() - operandsAt > OPERANDS_MS) loadOperands();
  }

  return {
    follow,
    /** Everything anew, at the next change. */
    again: () => void (shownFor = ""),
    moreSkips: () => set({ skipRows: store.get().scaler.skipRows + 4 * ROWS }),
    moreOperands: () => set({ operandRows: store.get().scaler.operandRows + 4 * ROWS }),
  };
}
