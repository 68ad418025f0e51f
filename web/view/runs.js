/** The list of runs: one line each, the worst headroom before everything else. */

import { number, numbers } from "../data/json.js";
import { namesIn, namesText } from "../data/arrange.js";
import { AUTO_KIND, HOME } from "../data/route.js";
import { found, toggled } from "../data/run-list.js";
import { bits, clock, count, duration, figure, tail } from "../data/text.js";
import { serverNow, silentSeconds } from "../state.js";
import { h } from "./dom.js";
import { notFinite, severityMark, sparkline } from "./marks.js";
import { empty, failure, pendingNote } from "./notes.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {import("../data/types.js").RunItem} RunItem */
/** @typedef {import("../main.js").Context} Context */

/** @type {Record<string, (a: RunItem, b: RunItem) => number>} */
const ORDER = {
  started: (a, b) => Date.parse(b.started_at ?? "1970") - Date.parse(a.started_at ?? "1970"),
  name: (a, b) => a.name.localeCompare(b.name),
  step: (a, b) => b.steps - a.steps,
  headroom: (a, b) => bitsLeft(a) - bitsLeft(b),
  alerts: (a, b) => gravity(b) - gravity(a),
};

/** @param {RunItem} run */
const bitsLeft = (run) => number(run.worst?.headroom) ?? Infinity;
/** @param {RunItem} run */
const gravity = ({ alerts }) => alerts.critical * 1e6 + alerts.warning * 1e3 + alerts.info;

/** @param {State} state @param {Context} context */
export function runsPage(state, context) {
  const { t, act } = context;
  const { data, error } = state.runs;
  const note = pendingNote(context, state.runs, t("what.runs"));
  if (note || data === null) return h("section", { class: "runs" }, note);
  const { own } = state.route;
  const picked = namesIn(own["pick"] ?? "").filter((name) => data.some((run) => run.name === name));
  const sorted = found(data, own["find"] ?? "").sort(ORDER[state.route.sort]);
  const live = data.filter((run) => run.state === "live").length;
  const critical = data.reduce((sum, run) => sum + run.alerts.critical, 0);
  const column = (/** @type {string} */ key, /** @type {string} */ className) =>
    h(
      "th",
      { scope: "col", class: className, "aria-sort": state.route.sort === key ? (key === "name" || key === "headroom" ? "ascending" : "descending") : undefined },
      h("button", { type: "button", class: "sort", onclick: () => act.navigate({ sort: key }) }, t(`runs.${key}`)),
    );
  return h(
    "section",
    { class: "runs" },
    h("h1", { class: "summary" }, t("runs.summary", { runs: count(data.length), live: count(live), critical: count(critical) })),
    error ? failure(context, error) : null,
    data.length === 0 ? null : bar(sorted.length, data.length, picked, state, context),
    data.length === 0
      ? empty(t("runs.empty"), t("runs.empty_hint"), h("code", null, "scope = floatscope.watch(model, optimizer)"))
      : h(
          "table",
          { class: "table" },
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              h("th", { scope: "col", class: "pick" }, h("span", { class: "sr" }, t("runs.compare"))),
              column("name", ""),
              column("headroom", "figure"),
              h("th", { scope: "col", class: "wide" }, t("runs.layer")),
              column("alerts", ""),
              column("step", "figure"),
              h("th", { scope: "col", class: "figure" }, t("runs.loss")),
              h("th", { scope: "col", class: "wide" }, t("runs.trend")),
              column("started", "wide"),
              h("th", { scope: "col", class: "figure wide" }, t("runs.duration")),
            ),
          ),
          h("tbody", null, sorted.map((run) => row(run, picked, state, context))),
        ),
  );
}

/** @param {number} shown @param {number} all @param {readonly string[]} picked @param {State} state @param {Context} context */
function bar(shown, all, picked, state, { t, act }) {
  const { own } = state.route;
  const find = (/** @type {Event} */ event) => act.replace({ own: { find: /** @type {HTMLInputElement} */ (event.currentTarget).value } });
  return h(
    "div",
    { class: "filters", role: "group", "aria-label": t("runs.find") },
    h("label", { class: "select" }, h("span", { class: "label" }, t("runs.find")), h("input", { type: "search", spellcheck: "false", autocomplete: "off", placeholder: t("runs.find_hint"), value: own["find"] ?? "", oninput: find })),
    h("span", { class: "muted", role: "status" }, shown < all ? t("runs.found", { n: count(shown), all: count(all) }) : ""),
    h("span", { class: "spring" }),
    picked.length === 0 ? null : h("button", { type: "button", class: "plain", onclick: () => act.replace({ own: { pick: "" } }) }, t("runs.unpick")),
    picked.length === 0
      ? null
      : picked.length === 1
        ? h("span", { class: "muted" }, t("runs.pick_more"))
        : h("a", { class: "compare-picked", href: act.link({ ...HOME, page: "compare", own: { runs: namesText(picked) } }) }, t("runs.compare_n", { n: count(picked.length) })),
  );
}

/** @param {RunItem} run @param {readonly string[]} picked @param {State} state @param {Context} context */
function row(run, picked, state, { t, act }) {
  const headroom = number(run.worst?.headroom);
  const loss = number(run.last.loss);
  const losses = numbers(run.sparkline);
  const started = run.started_at === null ? null : Date.parse(run.started_at);
  const end = run.finished_at !== null ? Date.parse(run.finished_at) : run.state === "live" ? serverNow(state) : Date.parse(run.heartbeat_at ?? "");
  const silent = silentSeconds(state, run);
  return h(
    "tr",
    { key: run.name, class: `state-${run.state}` },
    h("td", { class: "pick" }, h("input", { type: "checkbox", "aria-label": t("runs.pick", { run: run.name }), checked: picked.includes(run.name), onchange: () => act.replace({ own: { pick: namesText(toggled(picked, run.name)) } }) })),
    h(
      "th",
      { scope: "row" },
      h("a", { href: act.link({ page: "run", run: run.name, kind: AUTO_KIND }) }, run.name),
      run.steps === 0 ? null : h("span", { class: "glance" }, `${t("at_step", { step: newestStep(run) })} \u00b7 ${t("runs.loss")} ${figure(loss)}`),
      h("span", { class: `runstate state-${silent === null ? run.state : "stale"}` }, silent === null ? t(`state.${run.state}`) : t("runs.silent", { time: duration(silent) })),
    ),
    h("td", { class: `figure headroom ${grade(headroom)}` }, bits(headroom), h("span", { class: "unit" }, headroom === undefined ? "" : ` ${t("unit.bits")}`)),
    h("td", { class: "layer wide", title: run.worst?.layer }, run.worst ? tail(run.worst.layer, 32) : "\u2014"),
    h("td", null, alertCounts(run, t)),
    h("td", { class: "figure" }, newestStep(run)),
    h("td", { class: "figure" }, figure(loss)),
    h("td", { class: "wide" }, losses.length > 0 && !losses.some(Number.isFinite) ? notFinite(132, 24) : sparkline(losses, 132, 24)),
    h("td", { class: "wide" }, started === null ? "\u2014" : clock(started, state.now)),
    h("td", { class: "figure wide" }, started === null || Number.isNaN(end) ? "\u2014" : [duration((end - started) / 1000), run.attempt > 1 ? h("span", { class: "unit" }, ` ${t("runs.attempts", { n: String(run.attempt) })}`) : null]),
  );
}

/** Steps count from 0. @param {RunItem} run */
export function newestStep(run) {
  return count(run.steps > 0 ? run.steps - 1 : null);
}

/** How near the limit: a word for style sheets. @param {number | undefined} headroom */
export function grade(headroom) {
  if (headroom === undefined) return "";
  return headroom < 0 || Number.isNaN(headroom) ? "over" : headroom < 1 ? "near" : "clear";
}

/** Open alerts; where none is open, muted, those that were. @param {RunItem} run @param {Context["t"]} t */
export function alertCounts(run, t) {
  const open = tallies(run.alerts, t);
  if (open.length > 0) return open;
  const past = tallies(run.alerts_past, t);
  if (past.length === 0) return h("span", { class: "muted" }, t("alerts.none_open"));
  return h("span", { class: "muted past" }, past, t("alerts.resolved"));
}

/** @param {RunItem["alerts"]} alerts @param {Context["t"]} t */
function tallies(alerts, t) {
  const severities = /** @type {const} */ (["critical", "warning", "info"]);
  return severities
    .filter((severity) => alerts[severity] > 0)
    .map((severity) =>
      h("span", { class: `tally ${severity}`, title: t(`severity.${severity}`) }, severityMark(severity), alerts[severity], h("span", { class: "sr" }, t(`severity.${severity}`))),
    );
}
