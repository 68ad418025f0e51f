/** The run as one file, to be kept or sent. */

import { h } from "./dom.js";

/** @param {string} run @param {string} language @param {import("../data/words.js").Translate} t */
export function reportLink(run, language, t) {
  return h("a", { class: "report", href: `/api/v1/runs/${encodeURIComponent(run)}/report?language=${language}`, download: true, title: t("report.title") }, t("report.link"));
}
