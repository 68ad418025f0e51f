/** Where the time of a step went, as far as the agent tells. */

import { phaseShares } from "../../data/cards.js";
import { count, figure, percent } from "../../data/text.js";
import { currentRun, visibleRange } from "../../state.js";
import { h } from "../dom.js";
import { failure } from "../notes.js";
import { createPhases, phaseColour } from "../phase-chart.js";

const HEIGHT = 150;

/** @param {import("../../state.js").State} state @param {import("../../main.js").Context} context */
export function phases(state, context) {
  const { t, act } = context;
  const { data, error } = state.cards.phases;
  const range = visibleRange(state);
  if (error && data === null) return failure(context, error);
  if (data === null || data.length === 0 || range === null) return null;
  const shares = phaseShares(data);
  const named = (/** @type {string} */ name) => (t(`phase.${name}`) === `phase.${name}` ? name.slice(6) : t(`phase.${name}`));
  return h(
    "section",
    { class: "phases", "aria-labelledby": "phases-title" },
    h("h2", { id: "phases-title" }, t("phases.title"), h("span", { class: "muted" }, t("step_range", { from: count(range.from), to: count(Math.min(range.to, Math.max(range.from, (currentRun(state)?.steps ?? 1) - 1))) })), state.route.from !== null || state.route.to !== null ? h("a", { href: act.link({ from: null, to: null }) }, t("axis.whole")) : null),
    h("div", { class: "phase-chart", role: "img", "aria-label": t("phases.label"), style: { height: `${HEIGHT}px` }, island: { create: createPhases, data: { phases: data, range, theme: state.theme, width: state.width, mark: state.route.step, height: HEIGHT } } }),
    h("dl", { class: "phase-shares" }, shares.map(({ name, seconds, share }, i) => h("div", { key: name }, h("dt", null, h("span", { class: "swatch", "aria-hidden": "true", style: { background: phaseColour(state.theme, i, shares.length) } }), named(name)), h("dd", { class: "figure" }, Number.isNaN(seconds) ? "\u2014" : `${figure(seconds)} s`), h("dd", { class: "muted figure" }, Number.isNaN(share) ? "\u2014" : percent(share))))),
    h("p", { class: "muted how" }, t("phases.how")),
  );
}
