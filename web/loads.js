/** Data on its way into named slots: the newest load of a slot wins, what an older one brings is dropped. */

import { ApiError } from "./api.js";

/** @template T @typedef {import("./state.js").Load<T>} Load */

/**
 * @template {string} Slot
 * @param {object} to
 * @param {(slot: Slot) => Load<any>} to.get
 * @param {(slot: Slot, value: Load<any>) => void} to.set
 * @param {() => unknown} to.unauthorised the server no longer knows us: called before the error is shown
 * @param {boolean} [to.keeps] whether data outlive a refusal too, and not only a server that does not answer; the refusal stands until the next answer
 */
export function createLoads({ get, set, unauthorised, keeps = false }) {
  /** @type {Map<Slot, AbortController>} */
  const loads = new Map();
  /**
   * @param {Slot} slot @param {(signal: AbortSignal) => Promise<any>} fetchData
   * @returns {Promise<boolean>} whether the slot now holds what this load brought
   */
  async function load(slot, fetchData) {
    loads.get(slot)?.abort();
    const own = new AbortController();
    loads.set(slot, own);
    set(slot, { status: "loading", data: get(slot).data, error: keeps ? get(slot).error : null });
    try {
      const data = await fetchData(own.signal);
      if (loads.get(slot) !== own) return false;
      set(slot, { status: "ready", data, error: null });
      return true;
    } catch (error) {
      if (own.signal.aborted) return false;
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) await unauthorised();
      if (loads.get(slot) !== own) return false;
      set(slot, { status: "error", data: keeps || error.status === 0 ? get(slot).data : null, error });
      return false;
    }
  }

  /** What is on its way into a slot comes no more. @param {Slot} slot */
  load.drop = (slot) => {
    loads.get(slot)?.abort();
    loads.delete(slot);
  };
  return load;
}
