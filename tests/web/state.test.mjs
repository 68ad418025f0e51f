import assert from "node:assert/strict";
import test from "node:test";

import { parseRoute } from "../../web/data/route.js";
import { initialState, wayBack } from "../../web/state.js";

/** @type {import("../../web/data/types.js").RunItem} */
const RUN = {
  name: "r",
  state: "live",
  attempt: 1,
  steps: 100,
  started_at: null,
  heartbeat_at: null,
  finished_at: null,
  last: { loss: null, grad_norm: null, loss_scale: null },
  worst: null,
  alerts: { critical: 0, warning: 0, info: 0 },
  alerts_past: { critical: 0, warning: 0, info: 0 },
  sparkline: [],
  overhead: null,
  world: 1,
  missing_ranks: [],
  max_steps: null,
  pace: null,
  chips: [],
  precision: { declared: null, executed: {}, unmet: 0 },
  tags: [],
  archived_at: null,
};

test("only a run that goes on is followed again after a look at some steps", () => {
  const back = (/** @type {string} */ state, /** @type {string} */ hash) =>
    wayBack({ ...initialState({ language: "en", theme: "light", width: 1400, route: parseRoute(hash) }), runs: { status: "ready", data: [{ ...RUN, state }], error: null } });
  assert.equal(back("live", "#/run/r?from=20&to=80"), "axis.follow");
  assert.equal(back("stalled", "#/run/r?from=20&to=80"), "axis.follow");
  assert.equal(back("live", "#/run/r?from=20"), "axis.whole");
  for (const over of ["finished", "failed", "lost"]) assert.equal(back(over, "#/run/r?from=20&to=80"), "axis.whole", over);
});
