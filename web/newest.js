/** The newest headroom of every layer, for the meter, where no heat map on the page brings it along. */

import { getJson, runPath } from "./api.js";
import { numbers } from "./data/json.js";
import { AUTO_KIND, kindOf } from "./data/route.js";
import { createLoads } from "./loads.js";
import { currentRun } from "./state.js";

/** A run that goes on is asked about again so often. */
const AGAIN_MS = 3000;

/** @param {import("./data/store.js").Store<import("./state.js").State>} store @param {() => void} reload asks again who we are when the server no longer knows */
export function createNewest(store, reload) {
  let shownFor = "";
  let loadedAt = 0;
  const load = createLoads({
    get: (/** @type {"newest"} */ slot) => store.get()[slot],
    set: (slot, value) => store.set({ [slot]: value }),
    unauthorised: reload,
    keeps: true,
  });

  /** @param {import("./state.js").State} state */
  function follow(state) {
    const { route, heat, newest } = state;
    const run = currentRun(state);
    const brought = heat.data?.meta.metric === "headroom" || heat.status === "loading";
    if (route.page !== "run" || run === null || route.kind === AUTO_KIND || run.steps === 0 || brought) return;
    // Updates are cast to no format, and so have no headroom as executed.
    const kind = route.kind === "update" ? kindOf(run) : route.kind;
    const wanted = `${kind} ${route.format} ${run.attempt} ${run.steps} ${run.name}`;
    // A run that was left empties its slot.
    if ((wanted === shownFor && newest.status !== "idle") || (newest.data !== null && Date.now() - loadedAt < AGAIN_MS)) return;
    shownFor = wanted;
    loadedAt = Date.now();
    const { format } = route;
    void load("newest", async (signal) => {
      const answer = await getJson(runPath(run.name, "/latest", { kind, format, metrics: "headroom" }), signal);
      return numbers(answer.values.headroom.filter((/** @type {unknown} */ value, /** @type {number} */ i) => value !== null && answer.steps[i] >= 0));
    });
  }

  return { follow };
}
