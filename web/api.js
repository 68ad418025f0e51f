/** Requests to the server that served the page, and to nothing else. */

import { decodeBlock } from "./data/fsb1.js";
import { BLOCK, JSON_TYPE, early, initOf } from "./early.js";

export { runPath } from "./data/paths.js";

/** An answer that is no data: what happened and what to do. */
export class ApiError extends Error {
  /** @param {number} status 0 when no answer came @param {string} code @param {string} message @param {string} hint */
  constructor(status, code, message, hint) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

/** @param {string} method @param {string} path @param {{ accept?: string, body?: unknown, signal?: AbortSignal }} options */
async function request(method, path, { accept = JSON_TYPE, body, signal }) {
  /** @type {RequestInit} */
  const init = { ...initOf(accept), method };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { Accept: accept, "Content-Type": "application/json" };
  }
  /** @type {Response} */
  let response;
  try {
    response = (method === "GET" ? await early(path) : null) ?? (await fetch(path, init));
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "", "");
  }
  if (response.ok) return response;
  const text = await response.text();
  let answer = { code: `http_${response.status}`, message: response.statusText, hint: "" };
  try {
    answer = { ...answer, ...JSON.parse(text).error };
  } catch {
    // A proxy in between answered in its own words; the status says enough.
  }
  throw new ApiError(response.status, answer.code, answer.message, answer.hint);
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function getJson(path, signal) {
  return (await request("GET", path, signal ? { signal } : {})).json();
}

/** @param {string} path @param {AbortSignal} [signal] */
export async function getBlock(path, signal) {
  const response = await request("GET", path, { accept: BLOCK, ...(signal ? { signal } : {}) });
  return decodeBlock(await response.arrayBuffer());
}

/** @param {"POST" | "PUT" | "PATCH" | "DELETE"} method @param {string} path @param {unknown} [body] @returns {Promise<any>} null: an answer without words */
export async function send(method, path, body) {
  const text = await (await request(method, path, body === undefined ? {} : { body })).text();
  return text === "" ? null : JSON.parse(text);
}
