/**
 * Pages and tabs that come on their own, each with what goes on behind it: when one is opened, or once all that was
 * opened is there. Over HTTP/1.1 a hundred and forty modules take a second; these are the half that an overview needs not.
 */

import { ApiError } from "./api.js";
import { LANGUAGES } from "./data/words.js";
import { learn } from "./i18n/index.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {(state: State, context: import("./main.js").Context) => import("./view/dom.js").Child} View */
/** @typedef {{ view: View, follow: (state: State) => void, again?: () => void }} Brought again: everything anew, at the next change */
/** @typedef {keyof ReturnType<typeof sourcesOf>} Place */
/**
 * @typedef {object} PlaceActions of each place what a person can do there; there before its view is
 * @property {import("./desk.js").DeskActions} desk
 * @property {ReturnType<typeof import("./config.js").createConfig>} config
 * @property {ReturnType<typeof import("./scaler.js").createScaler>} scaler
 * @property {ReturnType<typeof import("./cards.js").createCards>} cards
 */

/** @param {State["route"]} route @returns {string} which of the places it shows, if any */
export function placeOf({ page, tab }) {
  return page === "run" ? tab : page;
}

/**
 * What a server does not bring that is gone: no mistake of ours.
 * @template T
 * @param {Promise<T>} modules @returns {Promise<T>}
 */
export async function fetched(modules) {
  try {
    return await modules;
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError(0, "unreachable", "", "");
    throw error;
  }
}

/**
 * @param {import("./data/store.js").Store<State>} store
 * @param {import("./controller.js").Controller} controller
 * @param {PlaceActions} actions where those of a place are put when it comes
 */
function sourcesOf(store, controller, actions) {
  const { reload } = controller;
  return {
    /** @returns {Promise<Brought>} */
    async alerts() {
      const [{ desk: view }, { createDesk }] = await fetched(Promise.all([import("./view/desk/page.js"), import("./desk.js")]));
      const { follow, refresh } = (actions.desk = createDesk(store, reload));
      return { view, follow, again: () => store.get().route.page === "alerts" && refresh() };
    },
    /** @returns {Promise<Brought>} */
    async compare() {
      const [{ comparePage: view }, { createCompare }] = await fetched(Promise.all([import("./view/compare/page.js"), import("./compare.js")]));
      return { view, follow: createCompare(store, reload).follow };
    },
    /** @returns {Promise<Brought>} */
    async config() {
      const [{ configTab: view }, { createConfig }] = await fetched(Promise.all([import("./view/run/config.js"), import("./config.js")]));
      return { view, follow: (actions.config = createConfig(store, reload)).follow };
    },
    /** @returns {Promise<Brought>} */
    async scaler() {
      const [{ scalerTab: view }, { createScaler }] = await fetched(Promise.all([import("./view/run/scaler.js"), import("./scaler.js")]));
      const { follow, again } = (actions.scaler = createScaler(store, controller));
      return { view, follow, again };
    },
    /** @returns {Promise<Brought>} */
    async devices() {
      const [{ devicesTab: view }, { createCards }] = await fetched(Promise.all([import("./view/run/devices.js"), import("./cards.js")]));
      const { follow, again } = (actions.cards = createCards(store, controller));
      return { view, follow, again };
    },
  };
}

/** @type {(...given: Parameters<typeof sourcesOf>) => { follow: (state: State) => void, rest: () => void, again: () => void }} */
export function createPlaces(store, controller, actions) {
  const sources = sourcesOf(store, controller, actions);
  /** @type {Set<Place>} */
  const asked = new Set();
  /** @type {(() => void)[]} */
  const agains = [];

  /** @param {Place} place */
  async function bring(place) {
    if (asked.has(place)) return;
    asked.add(place);
    try {
      const { view, follow, again } = await sources[place]();
      store.subscribe(follow);
      if (again) agains.push(again);
      store.set({ views: { ...store.get().views, [place]: view } });
    } catch (error) {
      asked.delete(place);
      if (!(error instanceof ApiError)) throw error;
      // Of one that nobody waits for nothing is said: it is asked for again when it is opened.
      if (placeOf(store.get().route) === place) store.set({ awaited: { place, error } });
    }
  }

  /** @param {State} state */
  function follow({ route, awaited }) {
    const place = placeOf(route);
    // After a failure it is asked for again when a person says so, or comes back.
    if (awaited !== null && awaited.place !== place) store.set({ awaited: null });
    else if (place in sources && awaited === null) void bring(/** @type {Place} */ (place));
  }

  return {
    follow,
    /** All others too, and the other language. */
    rest() {
      for (const place of Object.keys(sources)) void bring(/** @type {Place} */ (place));
      for (const language of LANGUAGES) void fetched(learn(language)).catch((error) => error instanceof ApiError || Promise.reject(error));
    },
    again() {
      store.set({ awaited: null });
      for (const again of agains) again();
    },
  };
}
