/** A server in token mode asks who you are; the token goes into a cookie that scripts cannot read. */

import { sentences } from "../data/text.js";
import { h } from "./dom.js";

/** @param {import("../state.js").State} state @param {import("../main.js").Context} context */
export function signIn(state, { t, act }) {
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    void act.signIn(String(new FormData(form).get("token")).trim());
  };
  return h(
    "form",
    { class: "signin", onsubmit: submit },
    h("h1", null, t("signin.title")),
    h("p", null, t("signin.why")),
    h("label", { for: "token" }, t("signin.token")),
    h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false", "aria-describedby": "signin-error" }),
    h("p", { id: "signin-error", class: "failed", role: "alert" }, state.notice ? sentences(state.notice.message || t("note.unreachable"), state.notice.hint) : ""),
    h("button", { type: "submit", class: "primary" }, t("signin.submit")),
  );
}
