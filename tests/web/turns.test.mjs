import assert from "node:assert/strict";
import test from "node:test";

import { HOLD_MS, TURN_MS, URGENT_MS, createTurns } from "../../web/data/turns.js";

/** Turns under a clock that runs from one timer to the next. */
function clocked() {
  let now = 1000;
  /** @type {{ run: () => void, at: number } | null} */
  let timer = null;
  /** @type {[string, number][]} */
  const drawn = [];
  const turns = createTurns(() => now, (run, ms) => {
    const own = (timer = { run, at: now + ms });
    return () => void (timer === own && (timer = null));
  });
  return {
    turns,
    drawn,
    /** @param {string} name @param {number} [cost] */
    drawing: (name, cost = 0) => () => (drawn.push([name, now - 1000]), (now += cost)),
    /** Until then, or until nothing is left. @param {number} ms */
    pass(ms) {
      const end = now + ms;
      while (timer !== null && timer.at <= end) {
        const { run, at } = timer;
        timer = null;
        now = Math.max(now, at);
        run();
      }
      now = Math.max(now, end);
    },
  };
}

test("one after the other, with a pause in which the page can do something else", () => {
  const { turns, drawn, drawing, pass } = clocked();
  turns.take(drawing("a", 50), false);
  turns.take(drawing("b"), false);
  pass(2000);
  assert.deepEqual(drawn, [["a", 0], ["b", 50 + TURN_MS]]);
});

test("what a person waits for comes before new points, and soon", () => {
  const { turns, drawn, drawing, pass } = clocked();
  const points = drawing("points");
  turns.take(points, false);
  turns.take(drawing("zoom", 50), true);
  turns.take(drawing("another", 50), true);
  pass(2000);
  assert.deepEqual(drawn, [["zoom", 0], ["another", 50 + URGENT_MS], ["points", 2 * 50 + URGENT_MS + TURN_MS]]);
});

test("what is held is drawn once, when it is let go", () => {
  const { turns, drawn, drawing, pass } = clocked();
  const zoom = drawing("zoom");
  turns.hold(true);
  turns.take(zoom, true);
  pass(100);
  turns.take(zoom, true);
  turns.hold(true);
  pass(100);
  assert.deepEqual(drawn, []);
  turns.hold(false);
  pass(2000);
  assert.deepEqual(drawn, [["zoom", 200 + URGENT_MS]]);
});

test("nothing is held for long", () => {
  const { turns, drawn, drawing, pass } = clocked();
  turns.hold(true);
  turns.take(drawing("zoom"), true);
  turns.take(drawing("another"), true);
  const gone = drawing("gone");
  turns.take(gone, true);
  turns.drop(gone);
  pass(2000);
  assert.deepEqual(drawn, [["zoom", HOLD_MS], ["another", HOLD_MS + URGENT_MS]]);
});
