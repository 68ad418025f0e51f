/** The range of steps that every trace shows, and a closer look at the next ones. */

import { PHONE } from "../../data/geometry.js";
import { sentences } from "../../data/text.js";
import { currentRun, wayBack } from "../../state.js";
import { h } from "../dom.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../main.js").Context} Context */

/** What the button asks for. */
const CLOSER_STEPS = 100;

/** @param {State} state @param {Context["t"]} t @param {Context["act"]} act */
function closer(state, t, act) {
  if (state.session?.scope !== "admin" || currentRun(state)?.state !== "live") return null;
  if (state.closer) return h("span", { class: "muted", role: "status" }, t("run.closer_now"));
  const steps = { steps: String(CLOSER_STEPS) };
  return h("button", { type: "button", title: t("run.closer_title", steps), onclick: () => void act.lookCloser(CLOSER_STEPS) }, t("run.closer", steps));
}

/** The range that every trace shows. @param {State} state @param {import("../../data/geometry.js").Range} range @param {Context} context */
export function axisBar(state, range, { t, act }) {
  const { route } = state;
  const submit = (/** @type {Event} */ event) => {
    const form = /** @type {HTMLInputElement} */ (event.currentTarget).form;
    if (!form) return;
    const value = (/** @type {string} */ name) => {
      const text = /** @type {HTMLInputElement} */ (form.elements.namedItem(name)).value;
      return /^\d+$/.test(text) ? Number(text) : null;
    };
    act.navigate({ from: value("from"), to: value("to") });
  };
  // A growing run's axis ends a little ahead of its newest step.
  const newest = Math.max(range.from, (currentRun(state)?.steps ?? 1) - 1);
  const field = (/** @type {"from" | "to"} */ name) =>
    h("input", { name, inputmode: "numeric", pattern: "\\d*", "aria-label": t(`axis.${name}`), placeholder: String(name === "to" ? Math.min(range.to, newest) : range.from), value: route[name] === null ? "" : String(route[name]), onchange: submit });
  return h(
    "form",
    { class: "axisbar", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
    h("span", { class: "label" }, t("axis.steps")),
    field("from"),
    h("span", { "aria-hidden": "true" }, "\u2013"),
    field("to"),
    route.from !== null || route.to !== null
      ? h("button", { type: "button", onclick: () => act.navigate({ from: null, to: null }) }, t(wayBack(state)))
      : h("span", { class: "muted" }, state.width < PHONE ? t("axis.all") : t(currentRun(state)?.state === "live" ? "axis.hint" : "axis.hint_still")),
    closer(state, t, act),
    state.notice ? h("span", { class: "failed", role: "alert" }, sentences(state.notice.message || t("note.unreachable"), state.notice.hint)) : null,
  );
}
