/** What stands where data is not: loading, empty, an error and what to do about it. */

import { placeOf } from "../places.js";
import { h } from "./dom.js";

/** @typedef {import("../main.js").Context} Context */
/** @typedef {import("../api.js").ApiError} ApiError */

/** @param {Context} context @param {string} what */
export function loading({ t }, what) {
  return h("div", { class: "note", role: "status" }, h("span", { class: "sweep", "aria-hidden": "true" }), t("note.loading", { what }));
}

/** A page or tab that comes on its own. @param {string} name what a person calls it @param {import("../state.js").State} state @param {Context} context */
export function placed(name, state, context) {
  const place = placeOf(state.route);
  const view = state.views[place];
  if (view) return view(state, context);
  return state.awaited?.place === place ? failure(context, state.awaited.error) : loading(context, name);
}

/** @param {string} title @param {...import("./dom.js").Child} rest */
export function empty(title, ...rest) {
  return h("div", { class: "note" }, h("strong", null, title), rest.map((line) => h("p", null, line)));
}

/** @param {Context} context @param {ApiError} error */
export function failure({ t, act }, error) {
  const silent = error.status === 0;
  return h(
    "div",
    { class: "note failed", role: "alert" },
    h("strong", null, silent ? t(`note.${error.code}`) : error.message),
    h("p", null, silent ? t(`note.${error.code}_hint`) : error.hint),
    h("button", { type: "button", onclick: act.retry }, t("note.retry")),
    silent ? null : h("code", null, error.code),
  );
}

/**
 * The note that fits a load without data, or null when it has some.
 * @template T
 * @param {Context} context @param {import("../state.js").Load<T>} load @param {string} what
 */
export function pendingNote(context, load, what) {
  if (load.data !== null) return null;
  return load.error ? failure(context, load.error) : loading(context, what);
}
