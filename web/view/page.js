/** The frame around every page: name, place, link to the server, language, theme. */

import { listOf } from "../data/compare.js";
import { openTally } from "../data/desk.js";
import { DESK } from "../data/desk-route.js";
import { HOME } from "../data/route.js";
import { clock, count } from "../data/text.js";
import { currentRun, silentSeconds } from "../state.js";
import { h } from "./dom.js";
import { severityMark } from "./marks.js";
import { failure, loading, placed } from "./notes.js";
import { runPage } from "./run/page.js";
import { runsPage } from "./runs/page.js";
import { signIn } from "./signin.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../main.js").Context} Context */

/** @param {State} state @param {Context} context */
export function page(state, context) {
  return h("div", { class: "page" }, header(state, context), h("main", { id: "main", tabindex: "-1" }, body(state, context)));
}

/** @param {State} state @param {Context} context */
function body(state, context) {
  if (state.session === null) return state.sessionError ? failure(context, state.sessionError) : loading(context, context.t("what.server"));
  if (state.session.scope === null) return signIn(state, context);
  if (state.route.page === "compare") return placed(context.t("compare.title"), state, context);
  if (state.route.page === "alerts") return placed(context.t("alerts.title"), state, context);
  return state.route.page === "run" ? runPage(state, context) : runsPage(state, context);
}

/** @param {State} state @param {Context} context */
function header(state, context) {
  const { t, act } = context;
  const { route } = state;
  const other = state.language === "en" ? "zh" : "en";
  const light = state.theme === "light";
  const list = act.link({ ...HOME, own: state.list.left });
  return h(
    "header",
    { class: isFresh(state) ? "top" : "top stale" },
    h("a", { class: "skip", href: "#main", onclick: (/** @type {Event} */ event) => (event.preventDefault(), document.getElementById("main")?.focus()) }, t("top.skip")),
    h("a", { class: "name", href: list }, wordmark(), "floatscope"),
    h(
      "nav",
      { "aria-label": t("top.place") },
      h("a", { href: list, "aria-current": route.page === "runs" ? "page" : undefined }, t("top.runs")),
      route.page === "run" ? [h("span", { class: "slash", "aria-hidden": "true" }, "/"), h("span", { class: "here", "aria-current": "page", title: route.run }, route.run)] : null,
      state.session?.scope ? [h("a", { class: "to-compare", href: compareHref(state, context), "aria-current": route.page === "compare" ? "page" : undefined }, t("compare.title")), alertsLink(state, context)] : null,
    ),
    h(
      "div",
      { class: "tools" },
      state.session?.scope ? linkState(state, context) : null,
      h("button", { type: "button", class: "plain", lang: other === "zh" ? "zh-CN" : "en", onclick: () => act.setLanguage(other) }, other === "zh" ? "\u4e2d\u6587" : "English"),
      h("button", { type: "button", class: "plain", onclick: () => act.setTheme(light ? "dark" : "light") }, t(light ? "top.dark" : "top.light")),
      state.session?.mode === "token" && state.session.scope ? h("button", { type: "button", class: "plain", onclick: act.signOut }, t("top.sign_out")) : null,
    ),
  );
}

/** The page that compares runs: as it is, or begun with the run that is open. @param {State} state @param {Context} context */
function compareHref({ route }, { act }) {
  if (route.page === "compare") return act.link({});
  return act.link({ ...HOME, page: "compare", own: { runs: route.page === "run" ? listOf([route.run]) : "" } });
}

/** The page of alerts, with how many are open and how grave the worst is. @param {State} state @param {Context} context */
function alertsLink(state, { t, act }) {
  const { open, worst } = openTally(state.runs.data ?? []);
  const href = act.link({ ...HOME, page: "alerts", desk: DESK });
  const tally = worst === null ? null : [severityMark(worst), h("span", { class: "figure" }, count(open)), h("span", { class: "sr" }, t("desk.n_open", { worst: t(`severity.${worst}`) }))];
  return h("a", { class: "to-alerts", href, "aria-current": state.route.page === "alerts" ? "page" : undefined }, t("alerts.title"), tally);
}

/** Whether what is shown is what is. @param {State} state */
function isFresh(state) {
  if (!state.session?.scope || state.link.status === "connecting") return true;
  const run = state.route.page === "run" ? currentRun(state) : null;
  return state.link.status === "open" && (run === null || silentSeconds(state, run) === null);
}

/** @param {State} state @param {Context} context */
function linkState(state, { t, act }) {
  const { link, now } = state;
  if (link.status === "open") {
    const run = state.route.page === "run" ? currentRun(state) : null;
    const silent = run && silentSeconds(state, run);
    if (run && silent !== null && run.heartbeat_at) {
      return h("span", { class: "link stale", role: "status" }, t("link.stale", { time: clock(Date.parse(run.heartbeat_at), now) }));
    }
    return h("span", { class: "link open", role: "status" }, h("span", { class: "word" }, t("link.open")));
  }
  const since = t("link.since", { time: clock(link.since, now) });
  if (link.status === "waiting" && link.retryAt === null) {
    return h("span", { class: "link lost", role: "status" }, `${t("link.lost")} ${since} \u00b7 ${t("link.connecting")}`);
  }
  if (link.status === "waiting" && link.retryAt !== null) {
    const seconds = String(Math.max(0, Math.ceil((link.retryAt - now) / 1000)));
    return [
      h("span", { class: "link lost", role: "status" }, `${t("link.lost")} ${since} \u00b7 ${t("link.retry_in", { seconds })}`),
      h("button", { type: "button", class: "plain", onclick: act.retry }, t("note.retry")),
    ];
  }
  return h("span", { class: "link", role: "status" }, t("link.connecting"));
}

function wordmark() {
  return h(
    "svg",
    { class: "wordmark", viewBox: "0 0 26 16", width: 26, height: 16, "aria-hidden": "true" },
    h("path", { class: "limit", d: "M0 3.5h26" }),
    h("path", { class: "trace", d: "M0 13l5-3 4 1.500 4.500-10 3.500 7.500 9-3" }),
  );
}
