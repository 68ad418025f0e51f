/** The entry that needs least: asks the first questions of a page while the modules of all the rest are on their way. */

import { RUNS, heatPath, heatQuery } from "./data/paths.js";
import { AUTO_KIND, kindOf, parseRoute } from "./data/route.js";
import { HEAT_TABS } from "./data/tab-fields.js";
import { languageFrom } from "./data/words.js";
import { BLOCK, JSON_TYPE, askEarly, askedAll } from "./early.js";
import { learn } from "./i18n/index.js";

void learn(languageFrom(localStorage.getItem("floatscope.language"), navigator.languages));
void askEarly("/api/v1/session", JSON_TYPE);
const runs = askEarly(RUNS, JSON_TYPE);
const route = parseRoute(location.hash);
if (route.page === "run" && HEAT_TABS.includes(route.tab)) {
  const kind = route.kind === AUTO_KIND ? await kindOfRun() : route.kind;
  if (kind !== AUTO_KIND) void askEarly(heatPath(route.run, heatQuery({ ...route, kind })), BLOCK);
}
askedAll();

/** What the page will settle on. */
async function kindOfRun() {
  /** @type {import("./data/types.js").RunItem[]} */
  const found = (await (await runs)?.clone().json()) ?? [];
  return kindOf(found.find((run) => run.name === route.run) ?? null);
}
