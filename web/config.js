/** What happens on the tab of a run's configuration: the run compared with, copying, searching. */

import { getJson, runPath } from "./api.js";
import { formatRoute } from "./data/route.js";
import { createLoads } from "./loads.js";
import { IDLE } from "./state.js";

/** @typedef {import("./state.js").State} State */

const COPIED_MS = 2000;

/** @param {import("./data/store.js").Store<State>} store @param {() => void} reload asks again who we are when the server no longer knows */
export function createConfig(store, reload) {
  let shownFor = "";
  /** @type {number | undefined} */
  let timer;

  const load = createLoads({
    get: (/** @type {"other"} */ slot) => store.get().config[slot],
    set: (slot, value) => store.set({ config: { ...store.get().config, [slot]: value } }),
    unauthorised: reload,
  });

  /** @param {State} state */
  function follow({ route, session, link }) {
    const against = route.page === "run" && route.tab === "config" && session?.scope ? (route.own["against"] ?? "") : "";
    const now = against === "" ? "" : `${link.status === "open" ? link.since : ""} ${against}`;
    if (now === shownFor) return;
    const other = against !== shownFor.slice(shownFor.indexOf(" ") + 1);
    shownFor = now;
    if (other) {
      load.drop("other");
      store.set({ config: { other: IDLE, copied: "" } });
    }
    if (against !== "") void load("other", (signal) => getJson(runPath(against), signal));
  }

  /** @param {string} what is shown beside what was copied @param {string} text */
  async function copy(what, text) {
    const done = await put(text);
    store.set({ config: { ...store.get().config, copied: done ? what : "failed" } });
    clearTimeout(timer);
    timer = window.setTimeout(() => store.set({ config: { ...store.get().config, copied: "" } }), COPIED_MS);
  }

  return {
    follow,
    copy,
    /** Another state of the search is no other place: the way back leads past it. @param {string} find */
    find(find) {
      const { route } = store.get();
      location.replace(formatRoute({ ...route, own: { ...route.own, find } }));
    },
  };
}

/** @param {string} text @returns {Promise<boolean>} whether it is in the clipboard, which pages without TLS have no access to */
async function put(text) {
  if (!navigator.clipboard) return false;
  return navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}

/** @typedef {ReturnType<typeof createConfig>} ConfigActions */
