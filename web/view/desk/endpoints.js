/** Where alerts are told: each receiver, how it does, and what can be done with it. */

import { draftOf } from "../../data/endpoint-draft.js";
import { clock, count } from "../../data/text.js";
import { h } from "../dom.js";
import { empty, pendingNote } from "../notes.js";
import { action, field, refusal, trouble, twice } from "./controls.js";
import { outcome } from "./deliveries.js";
import { endpointForm } from "./endpoint-form.js";

/** @typedef {import("../../data/types.js").Endpoint} Endpoint */
/** @typedef {import("../../data/types.js").Delivery} Delivery */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

const NEW = "endpoint new";

/** @param {State} state @param {Context} context */
export function endpointsTab(state, context) {
  const { t, act } = context;
  if (state.session?.scope !== "admin") return empty(t("end.no_right"), t("end.no_right_hint"));
  const { endpoints, receivers, asked } = state.desk;
  const note = pendingNote(context, endpoints, t("desk.endpoints")) ?? pendingNote(context, receivers, t("desk.endpoints"));
  if (note || endpoints.data === null || receivers.data === null) return note;
  const adding = asked === NEW;
  const begin = { type: "generic", url: "", language: state.language, min_severity: "warning", kinds: "", some: "", secret: "" };
  return [
    trouble(context, endpoints.error),
    h(
      "div",
      { class: "filters intro" },
      h("p", { class: "muted" }, t("end.why")),
      h("span", { class: "spring" }),
      h("button", { type: "button", class: "primary slim", "aria-expanded": adding ? "true" : "false", onclick: () => act.desk.ask(NEW, begin) }, t("end.add")),
    ),
    adding ? endpointForm(null, state, context) : null,
    endpoints.data.length === 0 && !adding ? empty(t("end.none"), t("end.none_hint")) : null,
    h("ul", { class: "plain-list endpoints" }, endpoints.data.map((endpoint) => item(endpoint, state, context))),
  ];
}

/** @param {Endpoint} endpoint @param {State} state @param {Context} context */
function item(endpoint, state, context) {
  const { t } = context;
  const { id, kinds } = endpoint;
  const changing = state.desk.asked === `endpoint ${id}`;
  const told = [
    t("end.from", { severity: t(`severity.${endpoint.min_severity}`) }),
    kinds.length === 0 ? t("end.all_kinds") : kinds.length <= 3 ? kinds.map((kind) => t(`alert.${kind}`)).join(", ") : t("end.n_kinds", { n: count(kinds.length) }),
    t(`tongue.${endpoint.type === "generic" ? "both" : endpoint.language}`),
    t(endpoint.signed ? "end.signed" : "end.unsigned"),
  ];
  return h(
    "li",
    { key: String(id), class: `endpoint${endpoint.enabled ? "" : " off"}` },
    h(
      "div",
      { class: "endpoint-head" },
      h("strong", null, t(`receiver.${endpoint.type}`)),
      h("code", null, endpoint.url),
      h("span", { class: `runstate ${endpoint.enabled ? "state-on" : "state-off"}` }, endpoint.enabled ? t("end.on") : t("end.off", { reason: endpoint.disabled_reason ?? "" })),
    ),
    h("p", { class: "muted", title: kinds.map((kind) => t(`alert.${kind}`)).join(", ") }, told.join(" \u00b7 ")),
    lastSent(endpoint, state, context),
    secretShown(endpoint, state, context),
    changing ? endpointForm(endpoint, state, context) : deeds(endpoint, state, context),
  );
}

/** @param {Endpoint} endpoint @param {State} state @param {Context} context */
function lastSent(endpoint, state, context) {
  const { t, act } = context;
  const own = (state.desk.deliveries.data ?? []).filter((delivery) => delivery.endpoint === endpoint.id);
  const [newest] = own;
  if (newest === undefined) return h("p", { class: "muted" }, t("end.never"));
  const test = own.find((delivery) => delivery.id === state.desk.tests[endpoint.id]);
  const shown = test ?? newest;
  return h(
    "div",
    { class: "last-sent", role: test ? "status" : undefined },
    h("span", { class: "label" }, t(test ? "end.test_result" : "end.last")),
    h("time", { class: "muted", datetime: shown.created_at }, clock(Date.parse(shown.created_at), state.now)),
    outcome(shown, state, context),
    h("a", { href: act.desk.link({ tab: "deliveries", endpoint: String(endpoint.id), outcome: "" }) }, t("end.log")),
  );
}

/** @param {Endpoint} endpoint @param {State} state @param {Context} context */
function secretShown(endpoint, state, { t, act }) {
  const { secret } = state.desk;
  if (secret?.endpoint !== endpoint.id) return null;
  const whole = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.currentTarget).select();
  return h(
    "div",
    { class: "secret", role: "status" },
    h("label", { for: "new-secret" }, t("end.secret_once")),
    h("input", { id: "new-secret", type: "text", readonly: true, value: secret.secret, onfocus: whole }),
    // Browsers give the clipboard to secure origins only.
    isSecureContext ? h("button", { type: "button", onclick: () => void navigator.clipboard.writeText(secret.secret) }, t("end.copy")) : null,
    h("button", { type: "button", onclick: act.desk.forgetSecret }, t("end.kept")),
  );
}

/** @param {Endpoint} endpoint @param {State} state @param {Context} context */
function deeds(endpoint, state, context) {
  const { t, act } = context;
  const { id, enabled } = endpoint;
  const type = state.desk.receivers.data?.types.find((one) => one.type === endpoint.type);
  const secretAsked = state.desk.asked === `secret ${id}`;
  const off = { text: t("end.disable"), question: t("end.disable_sure"), sure: t("end.disable") };
  const gone = { text: t("end.delete"), question: t("end.delete_sure"), sure: t("end.delete") };
  return [
    h(
      "p",
      { class: "deeds" },
      enabled ? action(state, `test ${id}`, t("end.test"), () => act.desk.testEndpoint(id)) : null,
      h("button", { type: "button", onclick: () => act.desk.ask(`endpoint ${id}`, draftOf(endpoint)) }, t("end.change")),
      type?.signed ? h("button", { type: "button", "aria-expanded": secretAsked ? "true" : "false", onclick: () => act.desk.ask(`secret ${id}`) }, t("end.new_secret")) : null,
      enabled ? twice(state, context, `enable ${id}`, off, () => act.desk.enable(id, false)) : action(state, `enable ${id}`, t("end.enable"), () => act.desk.enable(id, true)),
      twice(state, context, `delete ${id}`, gone, () => act.desk.deleteEndpoint(id)),
    ),
    secretAsked ? secretForm(endpoint, state, context) : null,
    ["test", "enable", "delete", "secret"].map((what) => refusal(state, context, `${what} ${id}`)),
  ];
}

/** @param {Endpoint} endpoint @param {State} state @param {Context} context */
function secretForm({ id, type }, state, context) {
  const { t, act } = context;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    void act.desk.replaceSecret(id, (state.desk.draft["secret"] ?? "").trim());
  };
  return h(
    "form",
    { class: "form narrow-form", onsubmit: submit },
    h("p", { class: "muted" }, t(type === "generic" ? "end.secret_webhook" : "end.secret_chat")),
    field("secret", t("end.secret"), state, context, { type: "password", maxlength: 200, autocomplete: "new-password" }),
    h("p", { class: "deeds" }, h("button", { type: "submit", class: "primary", disabled: state.desk.busy === `secret ${id}` }, t("end.replace")), h("button", { type: "button", class: "plain", onclick: () => act.desk.ask(`secret ${id}`) }, t("desk.cancel"))),
  );
}
