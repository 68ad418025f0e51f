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
  let answer = { code: `http_${response.status}`, message: response.statusText || `HTTP ${response.status}`, hint: "" };
  try {
    answer = { ...answer, ...(await response.json()).error };
  } catch (error) {
    if (signal?.aborted) throw error;
    // A proxy in between answered in its own words, or less than it began; the status says enough.
  }
  throw new ApiError(response.status, answer.code, answer.message, answer.hint);
}

/**
 * What is in an answer. One that is cut off, or that somebody in between wrote, is as none: the data that stand go on standing.
 * @template T
 * @param {Response} response @param {(bytes: ArrayBuffer) => T} decode @param {AbortSignal} [signal]
 */
async function contents(response, decode, signal) {
  /** @type {ArrayBuffer} */
  let bytes;
  try {
    bytes = await response.arrayBuffer();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "", "");
  }
  try {
    return decode(bytes);
  } catch {
    throw new ApiError(0, "garbled", "", "");
  }
}

/** @param {ArrayBuffer} bytes */
const fromJson = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function getJson(path, signal) {
  return contents(await request("GET", path, signal ? { signal } : {}), fromJson, signal);
}

/** @param {string} path @param {AbortSignal} [signal] */
export async function getBlock(path, signal) {
  const response = await request("GET", path, { accept: BLOCK, ...(signal ? { signal } : {}) });
  return contents(response, decodeBlock, signal);
}

/** @param {"POST" | "PUT" | "PATCH" | "DELETE"} method @param {string} path @param {unknown} [body] @returns {Promise<any>} null: an answer without words */
export async function send(method, path, body) {
  return contents(await request(method, path, body === undefined ? {} : { body }), (bytes) => (bytes.byteLength === 0 ? null : fromJson(bytes)));
}
