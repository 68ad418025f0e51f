/** A receiver that is added or changed: each type asks for what it needs. */

import { SEVERITIES } from "../../data/desk-route.js";
import { additionFrom, changeFrom, kindsIn, speaks, tellsNothing, withKind } from "../../data/endpoint-draft.js";
import { count } from "../../data/text.js";
import { h } from "../dom.js";
import { choice, field, refusal, tick } from "./controls.js";

/** @typedef {import("../../data/types.js").Endpoint} Endpoint */
/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

/** @param {Endpoint | null} endpoint null: a new one @param {State} state @param {Context} context */
export function endpointForm(endpoint, state, context) {
  const { t, act } = context;
  const { draft, receivers } = state.desk;
  // apprise connects by itself: only targets that the operator has named can be chosen, and without any there is no choice.
  const types = (receivers.data?.types ?? []).filter((one) => one.type !== "apprise" || one.targets.length > 0);
  const type = receivers.data?.types.find((one) => one.type === draft["type"]);
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    void (endpoint === null ? act.desk.addEndpoint(additionFrom(draft, type?.signed ?? false)) : act.desk.changeEndpoint(endpoint.id, changeFrom(draft)));
  };
  const set = (/** @type {string} */ name) => (/** @type {string} */ value) => act.desk.type(name, value);
  const levels = [...SEVERITIES].reverse().map((name) => /** @type {const} */ ([name, t("end.level", { severity: t(`severity.${name}`) })]));
  return h(
    "form",
    { class: "form endpoint-form", key: "form", onsubmit: submit, "aria-label": t(endpoint === null ? "end.add" : "end.change") },
    endpoint === null ? choice(t("end.type"), draft["type"] ?? "", types.map((one) => /** @type {const} */ ([one.type, t(`receiver.${one.type}`)])), set("type")) : null,
    h("p", { class: "needs muted" }, t(`needs.${draft["type"]}`), type?.per_minute ? ` ${t("end.pace", { n: count(Math.round(type.per_minute)) })}` : null),
    type?.type === "apprise"
      ? choice(t("end.target"), draft["url"] ?? "", [["", endpoint?.url ?? "\u2014"], ...type.targets.map((name) => /** @type {const} */ ([name, name]))], set("url"))
      : field("url", t("end.url"), state, context, { placeholder: endpoint === null ? "https://" : t("end.url_stays", { url: endpoint.url }), required: endpoint === null, maxlength: 2000, inputmode: "url" }),
    endpoint === null && type?.signed ? field("secret", t("end.secret"), state, context, { type: "password", maxlength: 200, autocomplete: "new-password", placeholder: t(type.type === "generic" ? "end.secret_made" : "end.secret_if") }) : null,
    choice(t("end.severity"), draft["min_severity"] ?? "", levels, set("min_severity")),
    speaks(draft["type"] ?? "") ? choice(t("end.language"), draft["language"] ?? "", [["en", t("tongue.en")], ["zh", t("tongue.zh")]], set("language")) : null,
    choice(t("desk.kind"), draft["some"] ?? "", [["", t("end.all_kinds")], ["1", t("end.some_kinds")]], set("some")),
    draft["some"] === "1"
      ? h("fieldset", { class: "kinds" }, h("legend", { class: "sr" }, t("end.some_kinds")), (receivers.data?.kinds ?? []).map((kind) => h("div", { key: kind }, tick(t(`alert.${kind}`), kindsIn(draft).includes(kind), (told) => act.desk.type("kinds", withKind(draft, kind, told))))))
      : null,
    h(
      "p",
      { class: "deeds" },
      h("button", { type: "submit", class: "primary", disabled: state.desk.busy === "endpoint" || tellsNothing(draft) }, t(endpoint === null ? "end.add_it" : "end.save")),
      h("button", { type: "button", class: "plain", onclick: () => act.desk.ask(state.desk.asked) }, t("desk.cancel")),
      tellsNothing(draft) ? h("span", { class: "muted" }, t("end.choose_kind")) : null,
    ),
    refusal(state, context, "endpoint"),
  );
}
