/** The entry that needs least: asks the first questions of a page while the modules of all the rest are on their way. */

import { RUNS, heatPath, heatQuery } from "./data/paths.js";
import { AUTO_KIND, kindOf, parseRoute } from "./data/route.js";
import { HEAT_TABS } from "./data/tab-fields.js";
import { languageFrom } from "./data/words.js";
import { BLOCK, JSON_TYPE, askEarly, askedAll } from "./early.js";
import { learn } from "./i18n/index.js";
import { kept } from "./kept.js";

void learn(languageFrom(kept("floatscope.language"), navigator.languages));
void askEarly("/api/v1/session", JSON_TYPE);
const runs = askEarly(RUNS, JSON_TYPE);
const route = parseRoute(location.hash);
if (route.page === "run" && HEAT_TABS.includes(route.tab)) {
  // A run that is not there yet is waited for, not asked about.
  const run = listed();
  const ask = (/** @type {string} */ kind) => void askEarly(heatPath(route.run, heatQuery({ ...route, kind })), BLOCK, run.then((found) => found !== null));
  if (route.kind !== AUTO_KIND) ask(route.kind);
  else {
    const kind = kindOf(await run);
    if (kind !== AUTO_KIND) ask(kind);
  }
}
askedAll();

/** @returns {Promise<import("./data/types.js").RunItem | null>} null: no such run, or no answer that can be read */
async function listed() {
  try {
    /** @type {import("./data/types.js").RunItem[]} */
    const found = (await (await runs)?.clone().json()) ?? [];
    return found.find((run) => run.name === route.run) ?? null;
  } catch {
    return null; // who needs it asks for it again, and says what is wrong
  }
}
