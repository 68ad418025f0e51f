/** Entry: state, controller, and one patch of the document per frame in which something changed. */

import { ApiError } from "./api.js";
import { createController } from "./controller.js";
import { parseRoute } from "./data/route.js";
import { createStore } from "./data/store.js";
import { languageFrom } from "./data/words.js";
import { learn, translator } from "./i18n/index.js";
import { keep, kept } from "./kept.js";
import { createNewest } from "./newest.js";
import { createPlaces, fetched } from "./places.js";
import { createRunList } from "./run-list.js";
import { initialState, currentRun } from "./state.js";
import { patch } from "./view/dom.js";
import { loadPlotly } from "./view/plot.js";
import { page } from "./view/page.js";
import { bits } from "./data/text.js";
import { number } from "./data/json.js";

/** Time for the charts to be drawn before what nobody has asked for yet is loaded. */
const REST_MS = 1000;

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
const wishesLight = matchMedia("(prefers-color-scheme: light)");
/** Where the system picks the colours, pictures must go with its page. */
const forced = matchMedia("(forced-colors: active)");
const chosenTheme = () => kept("floatscope.theme");

const store = createStore(
  initialState({
    route: parseRoute(location.hash),
    width: innerWidth,
    language: languageFrom(kept("floatscope.language"), navigator.languages),
    theme: themeNow(),
  }),
  (flush) => requestAnimationFrame(flush),
);
const controller = createController(store);
const newest = createNewest(store, controller.reload);
const list = createRunList(store, controller);

/** @returns {import("./data/colour.js").Theme} */
function themeNow() {
  const chosen = chosenTheme();
  return !forced.matches && (chosen === "dark" || chosen === "light") ? chosen : wishesLight.matches ? "light" : "dark";
}

const actions = {
  .../** @type {import("./places.js").PlaceActions} */ ({}),
  ...controller,
  list,
  retry() {
    controller.retry();
    places.again();
  },
  /** @param {import("./data/words.js").Language} language */
  async setLanguage(language) {
    keep("floatscope.language", language);
    try {
      await fetched(learn(language));
      store.set({ language });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      store.set({ notice: error });
    }
  },
  /** @param {import("./data/colour.js").Theme} theme */
  setTheme(theme) {
    keep("floatscope.theme", theme);
    store.set({ theme: themeNow() });
  },
};

const places = createPlaces(store, controller, actions);

/** @typedef {typeof actions} Actions */
/** @typedef {{ t: import("./data/words.js").Translate, act: Actions }} Context */

/** @param {import("./state.js").State} state */
function render(state) {
  const html = document.documentElement;
  const lang = state.language === "zh" ? "zh-CN" : "en";
  // To set what stands has the styles of the whole page worked out anew.
  if (html.lang !== lang) html.lang = lang;
  if (html.dataset["theme"] !== state.theme) html.dataset["theme"] = state.theme;
  const run = state.route.page === "run" ? currentRun(state) : null;
  const headroom = run?.worst ? number(run.worst.headroom) : undefined;
  const t = translator(state.language);
  const place = state.route.page === "run" ? state.route.run : state.route.page === "compare" ? t("compare.title") : state.route.page === "alerts" ? t(`desk.${state.route.desk.tab}`) : "";
  const title = `${headroom === undefined ? "" : `${bits(headroom)} b \u00b7 `}${place === "" ? "" : `${place} \u00b7 `}Floatscope`;
  // A title that is set is told to the window, the same one too.
  if (document.title !== title) document.title = title;
  patch(root, [page(state, { t, act: actions })]);
}

store.subscribe(render);
store.subscribe(newest.follow);
store.subscribe(list.follow);
store.subscribe(places.follow);
addEventListener("hashchange", () => controller.onRoute(parseRoute(location.hash)));
addEventListener("resize", () => (store.set({ width: innerWidth }), list.scrolled()));
addEventListener("scroll", list.scrolled, { passive: true });
addEventListener("online", controller.retry);
addEventListener("offline", controller.offline);
for (const wish of [wishesLight, forced]) wish.addEventListener("change", () => store.set({ theme: themeNow() }));
setInterval(() => store.set({ now: Date.now() }), 1000);
places.follow(store.get());
await learn(store.get().language);
render(store.get());
await controller.start();
const stopWaiting = store.subscribe((state) => {
  if (!showsAll(state)) return;
  stopWaiting();
  // In the frame after the next one this one is on the screen; only then may 4.8 MB of chart library take the thread.
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => void loadCharts())));
});

/** Whether what needs no chart library has been drawn on a page that has charts. @param {import("./state.js").State} state */
function showsAll({ route, heat, detail }) {
  if (route.page === "compare") return true;
  const loading = (/** @type {string} */ status) => status === "idle" || status === "loading";
  // A run without layers, and a tab without the heat map, never ask for one.
  return route.page === "run" && (!loading(heat.status) || (heat.status === "idle" && !loading(detail.status)));
}

const stopLooking = store.subscribe((state) => {
  if (state.route.page === "run" || state.route.page === "compare" ? !state.plotly : state.runs.data === null) return;
  stopLooking();
  setTimeout(places.rest, REST_MS);
});

async function loadCharts() {
  store.set({ plotly: await loadPlotly() });
}
