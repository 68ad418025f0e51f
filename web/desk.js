/** What happens on the page of alerts: loads what a tab shows, keeps it fresh, carries out what a person asks for. */

import { ApiError, getJson, runPath, send } from "./api.js";
import { PAGE_ROWS, together } from "./data/desk.js";
import { kindsOf } from "./data/rule-draft.js";
import { HOME, formatRoute } from "./data/route.js";
import { endpointActions } from "./endpoints.js";
import { createLoads } from "./loads.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./data/desk.js").DeskState} DeskState */
/** @typedef {import("./data/desk-route.js").Desk} Desk */
/** @typedef {"alerts" | "silences" | "audit" | "endpoints" | "receivers" | "deliveries" | "rules"} Slot */

const LIMIT = 1000;

/** Alerts of runs that are not open have no live feed; their tallies do, and tell at once. */
const AGAIN_MS = 15_000;

/** While something is on its way. */
const SENDING_MS = 1000;

/** @param {import("./data/store.js").Store<State>} store @param {() => void} reload asks again who we are when the server no longer knows */
export function createDesk(store, reload) {
  let shownFor = "";
  let tallies = "";
  let loadedAt = 0;
  /** What has been typed of rules and not saved, by run: it is there again when its tab is. @type {Map<string, Record<string, string>>} */
  const unsaved = new Map();
  /** The run whose rules are shown, "" for all. @type {string | null} */
  let rulesOf = null;

  function leaveRules() {
    if (rulesOf !== null) unsaved.set(rulesOf, store.get().desk.draft);
    rulesOf = null;
  }

  /** @param {Partial<DeskState>} change */
  const set = (change) => store.set({ desk: { ...store.get().desk, ...change } });
  const desk = () => store.get().route.desk;
  const isAdmin = () => store.get().session?.scope === "admin";

  const load = createLoads({
    get: (/** @type {Slot} */ slot) => /** @type {import("./state.js").Load<any>} */ (store.get().desk[slot]),
    set: (slot, value) => set({ [slot]: value }),
    unauthorised: reload,
    keeps: true,
  });

  /** @type {Record<Slot, () => Promise<boolean> | undefined>} */
  const sources = {
    alerts: () =>
      load("alerts", async (signal) => {
        const [open, past] = await Promise.all(["firing", "resolved"].map((state) => getJson(`/api/v1/alerts?state=${state}&limit=${LIMIT}`, signal)));
        return together(open, past);
      }),
    silences: () => load("silences", (signal) => getJson("/api/v1/silences", signal)),
    audit: () => (isAdmin() ? load("audit", (signal) => getJson(`/api/v1/audit?limit=${LIMIT}`, signal)) : undefined),
    endpoints: () => (isAdmin() ? load("endpoints", (signal) => getJson("/api/v1/endpoints", signal)) : undefined),
    receivers: () =>
      isAdmin()
        ? load("receivers", async (signal) => {
            const [types, rules] = await Promise.all([getJson("/api/v1/endpoints/types", signal), getJson("/api/v1/rules", signal)]);
            return { types, kinds: kindsOf(rules) };
          })
        : undefined,
    deliveries: () => load("deliveries", (signal) => getJson(deliveriesPath(desk(), store.get().desk.shown), signal)),
    rules: () => {
      const { run } = desk();
      return load("rules", async (signal) => {
        const [rules, settings] = await Promise.all(["", "/settings"].map((what) => getJson(rulesPath(run, what), signal)));
        return { run, rules, settings };
      });
    },
  };

  /** @type {Record<string, readonly Slot[]>} */
  const needs = { alerts: ["alerts", "silences", "audit"], rules: ["rules"], endpoints: ["endpoints", "receivers", "deliveries"], deliveries: ["endpoints", "deliveries"] };

  function refresh() {
    loadedAt = Date.now();
    for (const slot of needs[desk().tab] ?? []) void sources[slot]();
  }

  /** Loads when another tab, another right or a new link calls for it, and now and then. @param {State} state */
  function follow(state) {
    const { route, session, link } = state;
    if (route.page !== "alerts" || !session?.scope) {
      leaveRules();
      return void (shownFor = "");
    }
    const { tab, endpoint, outcome, run } = route.desk;
    const now = `${session.scope} ${tab} ${link.status === "open" ? link.since : ""} ${endpoint} ${outcome} ${tab === "rules" ? encodeURIComponent(run) : ""}`;
    const before = tallies;
    tallies = (state.runs.data ?? []).map(({ alerts, alerts_past: past }) => Object.values(alerts).concat(Object.values(past)).join()).join(" ");
    if (now !== shownFor) {
      const [, formerTab, ...former] = shownFor.split(" ");
      if (formerTab !== tab || (tab === "rules" && former.at(-1) !== now.split(" ").at(-1))) {
        leaveRules();
        rulesOf = tab === "rules" ? run : null;
        set({ asked: "", draft: (rulesOf === null ? null : unsaved.get(rulesOf)) ?? {}, refused: null, secret: null, preview: null, shown: PAGE_ROWS });
      }
      shownFor = now;
      return refresh();
    }
    if (link.status !== "open" || document.hidden) return; // the page says so; asking would only fail again
    if (tab === "alerts" && before !== tallies) void sources.alerts();
    const sending = tab !== "alerts" && tab !== "rules" && (state.desk.deliveries.data ?? []).some((one) => one.state === "pending" || one.state === "leased");
    if (tab !== "rules" && Date.now() - loadedAt > (sending ? SENDING_MS : AGAIN_MS)) refresh();
  }

  /**
   * @param {string} of names it while it is under way, and where to show what it came back with
   * @param {() => Promise<any>} action @param {readonly Slot[]} changes what is to be loaded anew
   */
  async function carryOut(of, action, changes) {
    set({ busy: of, refused: null });
    try {
      const answer = await action();
      set({ busy: "", ...(store.get().desk.asked.split(" ")[0] === of.split(" ")[0] ? { asked: "", draft: {} } : {}) });
      for (const slot of changes) void sources[slot]();
      return answer;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) reload();
      set({ busy: "", refused: { of, error } });
      return null;
    }
  }

  /** @param {Partial<Desk>} change as a link that can be opened elsewhere */
  const link = (change) => formatRoute({ ...HOME, page: "alerts", desk: { ...desk(), ...change } });

  return {
    follow,
    refresh,
    link,
    /** @param {Partial<Desk>} change */
    go: (change) => void (location.hash = link(change)),
    /** Opens a form or a question; the same again closes it. @param {string} what @param {Record<string, string>} [draft] what it begins with */
    ask: (what, draft = {}) => set(store.get().desk.asked === what ? { asked: "", draft: {}, refused: null } : { asked: what, draft, refused: null }),
    /** @param {string} name @param {string} value */
    type: (name, value) => set({ draft: { ...store.get().desk.draft, [name]: value }, preview: null }),
    showMore() {
      set({ shown: store.get().desk.shown + PAGE_ROWS });
      if (desk().tab === "deliveries") void sources.deliveries();
    },
    /** @param {string | number} id */
    acknowledge: (id) => carryOut(`acknowledge ${id}`, () => send("POST", `/api/v1/alerts/${encodeURIComponent(id)}/acknowledge`), ["alerts", "audit"]),
    /** @param {string | number} id */
    resolve: (id) => carryOut(`resolve ${id}`, () => send("POST", `/api/v1/alerts/${encodeURIComponent(id)}/resolve`), ["alerts", "audit"]),
    /** @param {{ seconds: number, run?: string, kind?: string, layer?: string, comment: string }} wanted */
    silence: (wanted) => carryOut("silence", () => send("POST", "/api/v1/silences", wanted), ["silences", "audit"]),
    /** @param {number} id */
    endSilence: (id) => carryOut(`unsilence ${id}`, () => send("DELETE", `/api/v1/silences/${id}`), ["silences", "audit"]),
    /** @param {string} run "" for all @param {unknown} settings */
    async saveRules(run, settings) {
      if (await carryOut("rules", () => send("PUT", rulesPath(run), settings), ["rules"])) set({ draft: {}, preview: null });
    },
    discardRules: () => set({ draft: {}, refused: null, preview: null }),
    /** @param {string} run in which to try them @param {unknown} settings */
    async previewRules(run, settings) {
      const answer = await carryOut("rules", () => send("POST", runPath(run, "/rules/preview"), settings), []);
      if (answer) set({ preview: { run, answer } });
    },
    ...endpointActions({ carryOut, set, get: () => store.get().desk }),
  };
}

/** @param {string} run "" for all @param {string} [rest] */
const rulesPath = (run, rest = "") => (run === "" ? `/api/v1/rules${rest}` : runPath(run, `/rules${rest}`));

/** On the page of endpoints only the newest of each are of use. @param {Desk} desk @param {number} shown */
function deliveriesPath({ tab, endpoint, outcome }, shown) {
  const fields = new URLSearchParams({ limit: String(Math.min(shown, 10_000)) });
  if (tab === "deliveries" && endpoint !== "") fields.set("endpoint", endpoint);
  if (tab === "deliveries" && outcome !== "") fields.set("state", outcome);
  return `/api/v1/deliveries?${fields}`;
}

/** @typedef {ReturnType<typeof createDesk>} DeskActions */
