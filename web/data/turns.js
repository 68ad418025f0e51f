/** Redraws that take turns, so that no frame draws two, and make way for what a person looks at first. */

/** Between two redraws for new points: a redraw takes some 50 ms, so this leaves the page four fifths of its time. */
export const TURN_MS = 240;

/** Between two redraws that a person waits for. */
export const URGENT_MS = 20;

/** The most that redraws wait while they are held. */
export const HOLD_MS = 500;

/**
 * @param {() => number} now milliseconds
 * @param {(run: () => void, ms: number) => () => void} later gives back its undo
 */
export function createTurns(now, later) {
  /** Redraws in line, each with whether somebody waits for it. @type {Map<() => void, boolean>} */
  const waiting = new Map();
  let cancel = () => {};
  let lastTurn = -Infinity;
  /** @type {number | null} */
  let heldAt = null;

  function schedule() {
    cancel();
    if (waiting.size === 0) return;
    const pause = [...waiting.values()].includes(true) ? URGENT_MS : TURN_MS;
    const free = Math.max(lastTurn + pause, heldAt === null ? -Infinity : heldAt + HOLD_MS);
    cancel = later(turn, Math.max(0, free - now()));
  }

  function turn() {
    const [next] = [...waiting].sort((a, b) => Number(b[1]) - Number(a[1]));
    if (next) {
      waiting.delete(next[0]);
      next[0]();
    }
    lastTurn = now();
    schedule();
  }

  return {
    /** @param {() => void} draw @param {boolean} urgent */
    take(draw, urgent) {
      waiting.set(draw, urgent || waiting.get(draw) === true);
      schedule();
    },
    /** @param {() => void} draw */
    drop: (draw) => void waiting.delete(draw),
    /** While something that goes first is on its way. What has come is drawn and shown before the next turn. @param {boolean} held */
    hold(held) {
      if (held === (heldAt !== null)) return;
      heldAt = held ? now() : null;
      lastTurn = held ? lastTurn : now();
      schedule();
    },
  };
}
