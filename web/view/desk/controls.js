/** The parts that the forms and filters of the alerts page share. */

import { sentences } from "../../data/text.js";
import { h } from "../dom.js";
import { failure } from "../notes.js";

/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../dom.js").Child} Child */

/**
 * A choice with its label before it.
 * @param {string} label @param {string} value @param {readonly (readonly [string, string])[]} options value and what is shown @param {(value: string) => void} choose
 */
export function choice(label, value, options, choose) {
  const change = (/** @type {Event} */ event) => choose(/** @type {HTMLSelectElement} */ (event.currentTarget).value);
  return h("label", { class: "select" }, h("span", { class: "label" }, label), h("select", { value, onchange: change }, options.map(([key, text]) => h("option", { key, value: key }, text))));
}

/** @param {string} name of the draft @param {string} label @param {State} state @param {Context} context @param {Record<string, unknown>} [props] of the input */
export function field(name, label, state, { act }, props = {}) {
  const type = (/** @type {Event} */ event) => act.desk.type(name, /** @type {HTMLInputElement} */ (event.currentTarget).value);
  return h("label", { class: "field" }, h("span", { class: "label" }, label), h("input", { type: "text", spellcheck: "false", autocomplete: "off", ...props, value: state.desk.draft[name] ?? "", oninput: type }));
}

/** @param {string} label @param {boolean} checked @param {(checked: boolean) => void} choose */
export function tick(label, checked, choose) {
  const change = (/** @type {Event} */ event) => choose(/** @type {HTMLInputElement} */ (event.currentTarget).checked);
  return h("label", { class: "tick" }, h("input", { type: "checkbox", checked, onchange: change }), h("span", null, label));
}

/** Why what is shown could not be renewed. That the server does not answer is said once, in the page's head. @param {Context} context @param {import("../../api.js").ApiError | null} error */
export function trouble(context, error) {
  return error === null || error.status === 0 ? null : failure(context, error);
}

/** What an action came back with, at the place of the action. @param {State} state @param {Context} context @param {string} of */
export function refusal(state, { t }, of) {
  const { refused } = state.desk;
  if (refused?.of !== of) return null;
  return h("p", { class: "failed refusal", role: "alert" }, sentences(refused.error.message || t("note.unreachable"), refused.error.hint));
}

/** @param {State} state @param {string} of names the action @param {string} text @param {() => unknown} act @param {Record<string, unknown>} [props] */
export function action(state, of, text, act, props = {}) {
  return h("button", { type: "button", ...props, disabled: state.desk.busy === of, onclick: () => void act() }, text);
}

/**
 * An action that cannot be taken back asks once more, in its own place.
 * @param {State} state @param {Context} context @param {string} of @param {{ text: string, question: string, sure: string }} words @param {() => unknown} act
 */
export function twice(state, context, of, words, act) {
  if (state.desk.asked !== of) return h("button", { key: of, type: "button", onclick: () => context.act.desk.ask(of) }, words.text);
  return h(
    "span",
    { key: `${of}?`, class: "twice", role: "group", "aria-label": words.question },
    h("span", null, words.question),
    action(state, of, words.sure, act, { class: "danger" }),
    h("button", { type: "button", class: "plain", onclick: () => context.act.desk.ask(of) }, context.t("desk.cancel")),
  );
}

/** @param {readonly (readonly [string, Child])[]} lines label and what it is; null ones are left out */
export function facts(lines) {
  return h("dl", { class: "facts" }, lines.filter(([, what]) => what !== null).map(([label, what]) => h("div", { key: label }, h("dt", null, label), h("dd", null, what))));
}
