/** Silences: nobody is told of some alerts until a time; they are judged and shown as ever. */

import { whoDid } from "../../data/desk.js";
import { clock } from "../../data/text.js";
import { serverNow } from "../../state.js";
import { h } from "../dom.js";
import { failure, loading } from "../notes.js";
import { by } from "./alert-detail.js";
import { action, choice, field, refusal, trouble } from "./controls.js";

/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../data/types.js").Silence} Silence */

const HOUR = 3600;
const LENGTHS = [HOUR, 4 * HOUR, 24 * HOUR, 7 * 24 * HOUR, 30 * 24 * HOUR];
const NEW = "silence new";

/** @param {State} state @param {Context} context */
export function silences(state, context) {
  const { t, act } = context;
  const { data, error } = state.desk.silences;
  const now = serverNow(state);
  const present = (data ?? []).filter((silence) => Date.parse(silence.until) > now);
  const admin = state.session?.scope === "admin";
  const asked = state.desk.asked === NEW;
  return h(
    "section",
    { class: "silences", key: "silences", "aria-labelledby": "silences-title" },
    h("h2", { id: "silences-title" }, t("silence.title"), admin ? h("button", { type: "button", "aria-expanded": asked ? "true" : "false", onclick: () => act.desk.ask(NEW, { seconds: String(HOUR) }) }, t("silence.new")) : null),
    asked ? silenceForm(state, context, NEW) : null,
    data !== null ? trouble(context, error) : error ? failure(context, error) : loading(context, t("silence.title")),
    data !== null && present.length === 0 ? h("p", { class: "muted quiet" }, t("silence.none")) : null,
    h("ul", { class: "plain-list" }, present.map((silence) => item(silence, state, context, admin))),
  );
}

/** @param {Silence} silence @param {State} state @param {Context} context @param {boolean} admin */
function item(silence, state, context, admin) {
  const { t, act } = context;
  const of = `unsilence ${silence.id}`;
  const who = whoDid(state.desk.audit.data, "silence.add", silence.id);
  const covered = [silence.kind === null ? null : t(`alert.${silence.kind}`), silence.run, silence.layer].filter((part) => part !== null);
  return h(
    "li",
    { key: String(silence.id), class: "silence" },
    h("p", { class: "silence-what" }, covered.length === 0 ? t("silence.all") : covered.join(" \u00b7 ")),
    h("p", { class: "muted" }, t("silence.until", { time: clock(Date.parse(silence.until), state.now) }), who === null ? null : ` \u00b7 ${by(who, t)}`),
    silence.comment === "" ? null : h("p", null, silence.comment),
    admin ? action(state, of, t("silence.end"), () => act.desk.endSilence(silence.id)) : null,
    refusal(state, context, of),
  );
}

/** @param {State} state @param {Context} context @param {string} of the question that it answers */
export function silenceForm(state, context, of) {
  const { t, act } = context;
  const { draft } = state.desk;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const scope = Object.fromEntries(["run", "kind", "layer"].map((name) => [name, draft[name] ?? ""]).filter(([, value]) => value !== ""));
    void act.desk.silence({ seconds: Number(draft["seconds"]), comment: draft["comment"] ?? "", ...scope });
  };
  const kinds = [.../** @type {Set<string>} */ (new Set([...(state.desk.alerts.data ?? []).map((alert) => alert.kind), draft["kind"] ?? ""]))].filter((kind) => kind !== "").sort();
  return h(
    "form",
    { class: "form", key: of, onsubmit: submit, "aria-label": t("silence.new") },
    h("p", { class: "muted" }, t("silence.why")),
    choice(t("silence.for"), draft["seconds"] ?? "", LENGTHS.map((seconds) => /** @type {const} */ ([String(seconds), t(`length.${seconds / HOUR}`)])), (value) => act.desk.type("seconds", value)),
    field("run", t("desk.run"), state, context, { placeholder: t("desk.any"), maxlength: 200, list: "silence-runs" }),
    h("datalist", { id: "silence-runs" }, (state.runs.data ?? []).map((run) => h("option", { key: run.name, value: run.name }))),
    choice(t("desk.kind"), draft["kind"] ?? "", [["", t("desk.any")], ...kinds.map((kind) => /** @type {const} */ ([kind, t(`alert.${kind}`)]))], (value) => act.desk.type("kind", value)),
    field("layer", t("desk.layer"), state, context, { placeholder: t("desk.any"), maxlength: 1000 }),
    field("comment", t("silence.comment"), state, context, { maxlength: 1000 }),
    h("p", { class: "deeds" }, h("button", { type: "submit", class: "primary", disabled: state.desk.busy === "silence" }, t("silence.submit")), h("button", { type: "button", class: "plain", onclick: () => act.desk.ask(of) }, t("desk.cancel"))),
    refusal(state, context, "silence"),
  );
}
