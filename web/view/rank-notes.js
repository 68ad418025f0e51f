/** Beside the health strip: ranks that are missing, or that do not agree. */

import { rankNotes } from "../data/ranks.js";
import { currentRun } from "../state.js";
import { h } from "./dom.js";
import { severityMark } from "./marks.js";

/** @param {import("../state.js").State} state @param {import("../main.js").Context} context */
export function rankNotesOf(state, { t }) {
  // Ranks come while the page is open: the list is told, the detail was asked for once.
  const { world, missing_ranks } = currentRun(state) ?? {};
  const notes = rankNotes({ world, missing_ranks, ranks_disagree: state.detail.data?.ranks_disagree });
  if (notes.length === 0) return null;
  return h(
    "ul",
    { class: "rank-notes", "aria-label": t("ranks.title") },
    notes.map(({ key, severity, figures }) => h("li", { key, class: severity }, severityMark(severity), h("span", null, t(key, figures)))),
  );
}
