import assert from "node:assert/strict";
import test from "node:test";

import { parseRoute } from "../../web/data/route.js";
import { afterEvents, initialState, wayBack } from "../../web/state.js";

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

test("events add to what is known, a checkpoint to the attempt that saved it", () => {
  const state = initialState({ language: "en", theme: "dark", width: 1440, route: parseRoute("#/run/r") });
  const events = [{ kind: "skipped", step: 4 }, { kind: "skipped", step: 5 }, { kind: "checkpoint", step: 5 }];
  assert.deepEqual(afterEvents({ ...state, skipped: [4] }, events).skipped, [4, 5]);
  assert.equal(afterEvents(state, events).detail, undefined); // its answer will have them
  /** @type {any} */
  const data = { checkpoints: [], checkpoints_saved: 70, ranks_disagree: [] };
  const known = { ...state, runs: { status: /** @type {const} */ ("ready"), data: [{ ...RUN, attempt: 2 }], error: null }, detail: { status: /** @type {const} */ ("ready"), data, error: null } };
  const { detail } = afterEvents(known, events);
  assert.deepEqual(detail?.data?.checkpoints, [{ kind: "checkpoint", step: 5, attempt: 2 }]);
  assert.equal(detail?.data?.checkpoints_saved, 71);
});
