/** What happens on the page of runs: which rows are on the screen, tags that are edited in their place, the archive. */

import { ApiError, runPath, send } from "./api.js";
import { namesIn, namesText } from "./data/arrange.js";
import { parseRoute } from "./data/route.js";
import { CARD_PX, PHONE_PX, ROW_PX, tagIn, toggled } from "./data/run-list.js";

/** @typedef {import("./state.js").State} State */
/**
 * @typedef {object} RunListState
 * @property {number} first uppermost row on the screen
 * @property {number} screen rows that fit on it
 * @property {string | null} editing the run whose tags are being edited
 * @property {string} draft the tag being typed
 * @property {number} busy changes that the server has not answered yet
 * @property {ApiError | null} error what the last change came back with
 * @property {import("./data/tab-fields.js").Own} left filters and order of the list when it was left
 */

/** Rows by which the window moves: a redraw for each would be too many. */
const STRIDE = 4;

/** @param {import("./data/store.js").Store<State>} store @param {import("./controller.js").Controller} controller */
export function createRunList(store, controller) {
  /** @type {HTMLElement | null} */
  let opener = null;
  /** Changes of one run go one after the other: each has all of its tags. */
  let last = Promise.resolve();

  /** @param {Partial<RunListState>} change */
  const set = (change) => store.set({ list: { ...store.get().list, ...change } });

  /** @param {any} item */
  function merge(item) {
    const { runs } = store.get();
    if (runs.data) store.set({ runs: { ...runs, data: runs.data.map((run) => (run.name === item.name ? item : run)) } });
  }

  /** @param {string} name @param {() => Record<string, unknown> | null} change asked for when its turn has come */
  function carryOut(name, change) {
    set({ busy: store.get().list.busy + 1, error: null });
    last = last.then(async () => {
      try {
        const wanted = change();
        if (wanted !== null) merge(await send("PATCH", runPath(name), wanted));
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (error.status === 401) controller.reload();
        set({ error });
      } finally {
        set({ busy: store.get().list.busy - 1 });
      }
    });
    return last;
  }

  /** @param {string} name */
  const tagsOf = (name) => store.get().runs.data?.find((run) => run.name === name)?.tags ?? [];

  return {
    /** @param {State} state */
    follow({ route, list }) {
      if (route.page !== "runs") {
        if (list.editing !== null || list.error !== null || list.first !== 0) set({ editing: null, error: null, first: 0 });
        return;
      }
      const { pick: _, ...left } = route.own;
      if (JSON.stringify(left) !== JSON.stringify(list.left)) set({ left });
    },
    /** The window or its size has changed. */
    scrolled() {
      const body = document.querySelector(".runs-table tbody");
      if (!body) return;
      const height = innerWidth < PHONE_PX ? CARD_PX : ROW_PX;
      const first = Math.floor(Math.max(0, -body.getBoundingClientRect().top) / height / STRIDE) * STRIDE;
      const screen = Math.ceil(innerHeight / height / STRIDE + 1) * STRIDE;
      const { list } = store.get();
      if (first !== list.first || screen !== list.screen) set({ first, screen });
    },
    /** Pick a run, or no longer: from where the address is, since a row that has not changed was drawn for an earlier one. @param {string} name */
    pick(name) {
      const picked = namesIn(parseRoute(location.hash).own["pick"] ?? "");
      controller.replace({ own: { pick: namesText(toggled(picked, name)) } });
    },
    /** Open the editor of a run's tags, or close it. @param {string | null} name */
    edit(name) {
      const closed = name === null ? opener : null;
      opener = name === null ? null : /** @type {HTMLElement | null} */ (document.activeElement);
      set({ editing: name, draft: "", error: null });
      // Two frames later it has been drawn.
      requestAnimationFrame(() => requestAnimationFrame(() => (closed ?? document.querySelector(".tag-editor input"))?.focus()));
    },
    /** @param {string} draft */
    type: (draft) => set({ draft }),
    /** Add what was typed. @param {string} name */
    addTag(name) {
      const tag = tagIn(store.get().list.draft);
      if (tag === "") return;
      set({ draft: "" });
      void carryOut(name, () => (tagsOf(name).includes(tag) ? null : { tags: [...tagsOf(name), tag] }));
    },
    /** @param {string} name @param {string | undefined} tag undefined: there is none */
    removeTag(name, tag) {
      if (tag !== undefined) void carryOut(name, () => ({ tags: tagsOf(name).filter((other) => other !== tag) }));
    },
    /** @param {readonly string[]} names @param {boolean} archived */
    async archive(names, archived) {
      for (const name of names) void carryOut(name, () => ({ archived }));
      await last;
    },
  };
}
