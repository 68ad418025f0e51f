/** The alerts of all runs, the rules that raise them, where they are told, and what was sent. */

import { TABS } from "../../data/desk-route.js";
import { h } from "../dom.js";
import { alertsTab } from "./alerts.js";
import { deliveriesTab } from "./deliveries.js";
import { endpointsTab } from "./endpoints.js";
import { rulesTab } from "./rules.js";

/** @typedef {import("../../main.js").Context} Context */
/** @typedef {import("../../state.js").State} State */

/** @type {Record<string, (state: State, context: Context) => import("../dom.js").Child>} */
const VIEWS = { alerts: alertsTab, rules: rulesTab, endpoints: endpointsTab, deliveries: deliveriesTab };

/** @param {State} state @param {Context} context */
export function desk(state, context) {
  const { t, act } = context;
  const { tab, run } = state.route.desk;
  return h(
    "section",
    { class: "desk", "aria-labelledby": "desk-title" },
    h("h1", { id: "desk-title", class: "sr" }, `${t("alerts.title")}: ${t(`desk.${tab}`)}`),
    h(
      "nav",
      { class: "tabs", "aria-label": t("alerts.title") },
      TABS.map((name) => h("a", { key: name, href: act.desk.link({ ...REST, tab: name, run: name === "alerts" || name === "rules" ? run : "" }), "aria-current": name === tab ? "page" : undefined }, t(`desk.${name}`))),
    ),
    h("div", { key: tab, class: `tab-${tab}` }, VIEWS[tab]?.(state, context)),
  );
}

/** What another tab does not take over. */
const REST = { state: "open", severity: "", kind: "", order: "newest", alert: "", endpoint: "", outcome: "" };
