/** What a person can have done to an endpoint and to what was sent to it. */

import { send } from "./api.js";

/** @typedef {import("./data/desk.js").DeskState} DeskState */
/** @typedef {(of: string, action: () => Promise<any>, changes: readonly ("endpoints" | "deliveries")[]) => Promise<any>} CarryOut */

/** @param {{ carryOut: CarryOut, set: (change: Partial<DeskState>) => void, get: () => DeskState }} desk */
export function endpointActions({ carryOut, set, get }) {
  /** @param {any} answer of a request that may have made a secret */
  const keep = (answer) => void (answer?.secret && set({ secret: { endpoint: answer.id, secret: answer.secret } }));
  const path = (/** @type {number} */ id, rest = "") => `/api/v1/endpoints/${id}${rest}`;
  return {
    /** @param {Record<string, unknown>} wanted */
    addEndpoint: async (wanted) => keep(await carryOut("endpoint", () => send("POST", "/api/v1/endpoints", wanted), ["endpoints"])),
    /** @param {number} id @param {Record<string, unknown>} change */
    changeEndpoint: (id, change) => carryOut("endpoint", () => send("PATCH", path(id), change), ["endpoints"]),
    /** @param {number} id @param {boolean} enabled */
    enable: (id, enabled) => carryOut(`enable ${id}`, () => send("PATCH", path(id), { enabled }), ["endpoints", "deliveries"]),
    /** @param {number} id @param {string} secret "": a fresh one, or none for a chat */
    replaceSecret: async (id, secret) => keep(await carryOut(`secret ${id}`, () => send("POST", path(id, "/secret"), secret === "" ? {} : { secret }), ["endpoints"])),
    /** @param {number} id */
    deleteEndpoint: (id) => carryOut(`delete ${id}`, () => send("DELETE", path(id)), ["endpoints", "deliveries"]),
    /** @param {number} id */
    async testEndpoint(id) {
      const sent = await carryOut(`test ${id}`, () => send("POST", path(id, "/test")), ["deliveries"]);
      if (sent) set({ tests: { ...get().tests, [id]: sent.id } });
    },
    forgetSecret: () => set({ secret: null }),
    /** @param {number} id */
    redeliver: (id) => carryOut(`redeliver ${id}`, () => send("POST", `/api/v1/deliveries/${id}/redeliver`), ["deliveries"]),
  };
}
