/** The list of runs: what is worst before everything else, and only the rows that are on the screen. */

import { namesIn, namesText } from "../../data/arrange.js";
import { CARD_PX, PHONE_PX, ROW_PX, allToggled, filtered, offered, orderOf, reordered, sorted, windowOf } from "../../data/run-list.js";
import { count } from "../../data/text.js";
import { serverNow } from "../../state.js";
import { h } from "../dom.js";
import { empty, failure, pendingNote } from "../notes.js";
import { bar, clear } from "./bar.js";
import { row } from "./row.js";

/** @typedef {import("../../state.js").State} State */
/** @typedef {import("../../data/types.js").RunItem} RunItem */
/** @typedef {import("../../main.js").Context} Context */

/** Columns with what each can be sorted by: two lines, two orders. */
const COLUMNS = /** @type {const} */ ([
  ["run", ["name", "state", "tags"]],
  ["headroom figure", ["headroom", "layer"]],
  ["alerts-cell", ["alerts"]],
  ["progress figure", ["step", "left"]],
  ["loss figure", ["loss"]],
  ["chip", ["chip", "precision"]],
  ["time figure", ["started", "duration"]],
]);

/** @param {State} state @param {Context} context */
export function runsPage(state, context) {
  const { t } = context;
  const { data, error } = state.runs;
  const note = pendingNote(context, state.runs, t("what.runs"));
  if (note || data === null) return h("section", { class: "runs" }, note);
  const { own } = state.route;
  const picked = namesIn(own["pick"] ?? "").filter((name) => data.some((run) => run.name === name));
  const shown = sorted(filtered(data, own), own, serverNow(state));
  return h(
    "section",
    { class: "runs" },
    h("h1", { class: "summary" }, summary(data, context)),
    error ? failure(context, error) : null,
    data.length === 0 ? null : bar(data, shown.length, picked, state, context),
    data.length === 0 ? nothing(context) : shown.length === 0 ? nothingFound(data, state, context) : table(shown, picked, state, context),
  );
}

/** @param {readonly RunItem[]} runs @param {Context} context */
function summary(runs, { t }) {
  const listed = runs.filter((run) => run.archived_at === null);
  const figures = { runs: count(listed.length), live: count(listed.filter((run) => run.state === "live").length), critical: count(listed.reduce((sum, run) => sum + run.alerts.critical, 0)) };
  const archived = runs.length - listed.length;
  return [t("runs.summary", figures), archived > 0 ? ` \u00b7 ${t("runs.n_archived", { n: count(archived) })}` : ""];
}

/** What to type first. @param {Context} context */
function nothing({ t }) {
  const ways = /** @type {const} */ ([
    ["runs.try_demo", "floatscope demo"],
    ["runs.try_run", `FLOATSCOPE_SERVER=${location.origin} floatscope run -- python train.py`],
    ["runs.try_watch", "scope = floatscope.watch(model, optimizer)"],
    ["runs.try_log", `floatscope follow trainer_log.jsonl --server ${location.origin}`],
  ]);
  return empty(t("runs.empty"), t("runs.empty_hint"), h("dl", { class: "ways" }, ways.map(([word, code]) => h("div", { key: word }, h("dt", null, t(word)), h("dd", null, h("code", null, code))))));
}

/** @param {readonly RunItem[]} runs @param {State} state @param {Context} context */
function nothingFound(runs, state, context) {
  const { t, act } = context;
  const away = state.route.own["archived"] === "" ? filtered(runs, { ...state.route.own, archived: "only" }).length : 0;
  return empty(
    t("runs.none_found"),
    away === 0 ? null : t("runs.archived_match", { n: count(away) }),
    away === 0 ? null : h("button", { type: "button", onclick: () => act.navigate({ own: { archived: "with" } }) }, t("runs.show_archived")),
    clear(context),
  );
}

/** @param {readonly RunItem[]} runs @param {readonly string[]} picked @param {State} state @param {Context} context */
function table(runs, picked, state, context) {
  const { t, act } = context;
  const card = state.width < PHONE_PX;
  const height = card ? CARD_PX : ROW_PX;
  const { from, to } = windowOf(runs.length, state.list.first, state.list.screen);
  const names = runs.map(({ name }) => name);
  const known = offered(state.runs.data ?? []).tags;
  const every = names.every((name) => picked.includes(name));
  return h(
    "table",
    { class: "runs-table", role: card ? "table" : undefined, "aria-rowcount": runs.length + 1, "aria-label": t("top.runs") },
    h(
      "thead",
      null,
      h(
        "tr",
        { "aria-rowindex": 1 },
        h("th", { scope: "col", class: "pick" }, h("input", { type: "checkbox", "aria-label": t("runs.pick_all", { n: count(names.length) }), checked: every, onchange: () => act.replace({ own: { pick: namesText(allToggled(picked, names)) } }) })),
        COLUMNS.map(([name, keys]) => head(name, keys, state, context)),
      ),
    ),
    h(
      "tbody",
      { role: card ? "rowgroup" : undefined },
      from === 0 ? null : gap("/above", from * height),
      runs.slice(from, to).map((run, i) => row(run, { index: from + i + 2, picked, known, card }, state, context)),
      to === runs.length ? null : gap("/below", (runs.length - to) * height),
    ),
  );
}

/** In place of rows that are not on the screen. A run's name has no slash. @param {string} key @param {number} height pixels */
const gap = (key, height) => h("tr", { key, class: "gap", "aria-hidden": "true" }, h("td", { colspan: COLUMNS.length + 1, style: { height: `${height}px` } }));

/** @param {string} name @param {readonly string[]} keys @param {State} state @param {Context} context */
function head(name, keys, state, { t, act }) {
  const { by, order } = orderOf(state.route.own);
  return h(
    "th",
    { key: name, scope: "col", class: name, "aria-sort": keys.includes(by) ? (order === "asc" ? "ascending" : "descending") : undefined },
    keys.map((key) => [
      h(
        "button",
        { key, type: "button", class: key === by ? "sort chosen" : "sort", onclick: () => act.navigate({ own: reordered(state.route.own, key) }) },
        t(`runs.${key}`),
        key === by ? [h("span", { "aria-hidden": "true" }, order === "asc" ? " \u2191" : " \u2193"), h("span", { class: "sr" }, `, ${t(`runs.${order}`)}`)] : null,
      ),
      " ",
    ]),
  );
}
