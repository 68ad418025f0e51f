/** Beside the health strip: ranks that are missing, or that do not agree. */

import { rankNotes } from "../data/ranks.js";
import { h } from "./dom.js";
import { severityMark } from "./marks.js";

/** @param {import("../state.js").State} state @param {import("../main.js").Context} context */
export function rankNotesOf(state, { t }) {
  const notes = rankNotes(state.detail.data ?? {});
  if (notes.length === 0) return null;
  return h(
    "ul",
    { class: "rank-notes", "aria-label": t("ranks.title") },
    notes.map(({ key, severity, figures }) => h("li", { key, class: severity }, severityMark(severity), h("span", null, t(key, figures)))),
  );
}
