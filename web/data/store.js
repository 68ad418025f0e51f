/** One state object, replaced and never changed; listeners hear of many changes in a row once. */

/**
 * @template S
 * @typedef {object} Store
 * @property {() => S} get
 * @property {(patch: Partial<S>) => void} set
 * @property {(listener: (state: S) => void) => () => void} subscribe gives back its undo
 */

/**
 * @template S
 * @param {S} initial
 * @param {(flush: () => void) => void} schedule when to tell the listeners: requestAnimationFrame in the page
 * @returns {Store<S>}
 */
export function createStore(initial, schedule) {
  let state = initial;
  let pending = false;
  /** @type {Set<(state: S) => void>} */
  const listeners = new Set();
  return {
    get: () => state,
    set(patch) {
      state = { ...state, ...patch };
      if (pending) return;
      pending = true;
      schedule(() => {
        pending = false;
        for (const listener of [...listeners]) listener(state);
      });
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
}
