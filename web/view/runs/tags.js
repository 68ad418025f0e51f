/** The tags of a run in its row, and the editor that opens in their place. */

import { h } from "../dom.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../data/types.js").RunItem} RunItem */
/** @typedef {import("../../main.js").Context} Context */

/** Shown in a row, and in a narrow one; the rest is counted. */
const MOST_SHOWN = { wide: 3, narrow: 1 };

/** As in style/runs.css. */
export const WIDE_PX = 1280;

/** @param {RunItem} run @param {readonly string[]} known tags of all runs @param {State} state @param {Context} context */
export function tagsOf(run, known, state, context) {
  const { t, act } = context;
  const { own } = state.route;
  const mayEdit = state.session?.scope === "admin";
  const open = mayEdit && state.list.editing === run.name;
  const most = state.width < WIDE_PX ? MOST_SHOWN.narrow : MOST_SHOWN.wide;
  const more = run.tags.length - most;
  const chips = [
    run.tags.slice(0, most).map((tag) => {
      const chosen = own["tag"] === tag;
      return h("button", { key: tag, type: "button", class: "runtag", title: tag, "aria-pressed": String(chosen), "aria-label": t("runs.only_tag", { tag }), onclick: () => act.navigate({ own: { tag: chosen ? "" : tag } }) }, h("bdi", null, tag));
    }),
    more > 0 ? h("span", { key: "/more", class: "muted", title: run.tags.slice(most).join(", ") }, `+${more}`) : null,
  ];
  return [
    run.tags.length === 0 ? null : h("span", { key: "/tags", class: "tags" }, chips),
    mayEdit
      ? h("button", { key: "/edit", type: "button", class: "plain tag-edit", "aria-expanded": String(open), "aria-label": t("runs.edit_tags", { run: run.name }), onclick: () => act.list.edit(open ? null : run.name) }, run.tags.length === 0 ? t("runs.tag_it") : "\u270e\ufe0e")
      : null,
    open ? editor(run, known, state, context) : null,
  ];
}

/** @param {RunItem} run @param {readonly string[]} known @param {State} state @param {Context} context */
function editor(run, known, state, { t, act }) {
  const { draft, error } = state.list;
  const onkeydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") act.list.edit(null);
    else if (event.key === "Backspace" && draft === "") act.list.removeTag(run.name, run.tags.at(-1));
    else if (event.key !== "Enter" && event.key !== ",") return;
    else act.list.addTag(run.name);
    if (event.key !== "Backspace") event.preventDefault();
  };
  return h(
    "span",
    { key: "/editor", class: "tag-editor", role: "group", "aria-label": t("runs.edit_tags", { run: run.name }) },
    run.tags.map((tag) => h("button", { key: tag, type: "button", class: "runtag", "aria-label": t("runs.remove_tag", { tag }), onclick: () => act.list.removeTag(run.name, tag) }, h("bdi", null, tag), " \u00d7")),
    h("input", { key: "/input", type: "text", list: "known-tags", maxlength: "40", spellcheck: "false", autocomplete: "off", placeholder: t("runs.new_tag"), "aria-label": t("runs.new_tag"), value: draft, oninput: (/** @type {Event} */ event) => act.list.type(/** @type {HTMLInputElement} */ (event.currentTarget).value), onkeydown }),
    h("datalist", { key: "/known", id: "known-tags" }, known.filter((tag) => !run.tags.includes(tag)).map((tag) => h("option", { key: tag, value: tag }))),
    h("button", { key: "/add", type: "button", disabled: draft.trim() === "", onclick: () => act.list.addTag(run.name) }, t("runs.add_tag")),
    h("button", { key: "/close", type: "button", class: "plain", onclick: () => act.list.edit(null) }, t("drawer.close")),
    error ? h("span", { key: "/error", class: "failed", role: "alert" }, error.message || t("note.unreachable")) : null,
  );
}
