/** The health strip: one lane for each family of rules, on the axis of all the other traces. */

import { PHONE, RIGHT } from "../../data/geometry.js";
import { lanes } from "../../data/health.js";
import { count } from "../../data/text.js";
import { alertsInView } from "../../state.js";
import { h } from "../dom.js";
import { checkpointMark, severityMark } from "../marks.js";

/**
 * @param {import("../../state.js").State} state @param {import("../../data/geometry.js").Range} range @param {import("../../main.js").Context} context
 * @param {import("../chart-marks.js").Marks["saved"]} saved
 */
export function strip(state, range, context, saved) {
  const { t, act } = context;
  const known = state.alerts.data !== null;
  const span = range.to + 1 - range.from;
  const share = (/** @type {number} */ step) => Math.min(1, Math.max(0, (step - range.from) / span));
  return h(
    "section",
    { class: "strip", "aria-label": t("strip.title"), style: { "--right": `${RIGHT}px` } },
    lanes(alertsInView(state)).map((lane) => {
      const visible = lane.stretches.filter(({ from, to }) => to >= range.from && from <= range.to);
      return h(
        "div",
        { class: "lane", key: lane.family },
        h("span", { class: `lane-name${lane.worst ? ` ${lane.worst}` : ""}` }, lane.worst ? severityMark(lane.worst) : h("span", { class: known ? "ok" : "unknown", "aria-hidden": "true" }), h("span", { class: "lane-word" }, t(state.width < PHONE ? `short.${lane.family}` : `family.${lane.family}`)), h("span", { class: "sr" }, lane.worst ? t(`severity.${lane.worst}`) : t(known ? "strip.ok" : "strip.unknown"))),
        h(
          "span",
          { class: "lane-track" },
          visible.map((stretch) => {
            const title = `${t(`family.${lane.family}`)} \u00b7 ${t(`severity.${stretch.severity}`)} \u00b7 ${t("step_range", { from: count(stretch.from), to: count(stretch.to) })}`;
            return h("button", {
              type: "button",
              class: `stretch ${stretch.severity}`,
              title,
              "aria-label": title,
              style: { left: `${share(stretch.from) * 100}%`, width: `${(share(stretch.to + 1) - share(stretch.from)) * 100}%` },
              onclick: () => act.navigate({ step: stretch.from }),
            });
          }),
        ),
      );
    }),
    checkpoints(state, saved, context),
  );
}

/** @param {import("../../state.js").State} state @param {import("../chart-marks.js").Marks["saved"]} saved @param {import("../../main.js").Context} context */
function checkpoints(state, saved, { t }) {
  const { checkpoints: newest = [], checkpoints_saved: all = 0 } = state.detail.data ?? {};
  if (newest.length === 0) return null;
  const cut = all > newest.length ? t("strip.checkpoints_newest", { n: count(newest.length), all: count(all) }) : "";
  return h(
    "div",
    { class: "lane", key: "checkpoints" },
    h("span", { class: "lane-name", title: cut }, checkpointMark(), h("span", { class: "lane-word" }, t(state.width < PHONE ? "strip.checkpoints_short" : "strip.checkpoints")), cut === "" ? null : h("span", { class: state.width < PHONE ? "sr" : "muted" }, cut)),
    h(
      "span",
      { class: "lane-track" },
      saved.map(({ first, n, share, href, title }) => h("a", { key: first, class: "on-rail saved", href, title, "aria-label": title, style: { left: `${share * 100}%` } }, checkpointMark(), n > 1 ? h("span", { "aria-hidden": "true" }, count(n)) : null)),
    ),
  );
}
