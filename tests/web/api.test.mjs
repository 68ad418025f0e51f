import assert from "node:assert/strict";
import test from "node:test";

import { ApiError, getBlock, getJson, send } from "../../web/api.js";

const { fetch } = globalThis;

/** What an error of the page says when the server answers so. @param {() => Response} answer @param {() => Promise<unknown>} ask */
async function refusal(answer, ask) {
  globalThis.fetch = async () => answer();
  try {
    await ask();
  } catch (error) {
    assert(error instanceof ApiError, String(error));
    return { status: error.status, code: error.code, message: error.message };
  } finally {
    globalThis.fetch = fetch;
  }
  return null;
}

/** A body whose connection breaks after its first bytes. */
const cut = () => new ReadableStream({ pull: (stream) => (stream.enqueue(new TextEncoder().encode('[{"a')), stream.error(new TypeError("network error"))) });

test("an answer that is cut off is as none", async () => {
  for (const ask of [() => getJson("/a"), () => getBlock("/a"), () => send("POST", "/a", {})]) {
    assert.deepEqual(await refusal(() => new Response(cut()), ask), { status: 0, code: "unreachable", message: "" });
  }
});

test("an answer that somebody else wrote cannot be read, and says so", async () => {
  for (const ask of [() => getJson("/a"), () => getBlock("/a"), () => send("POST", "/a", {})]) {
    assert.deepEqual(await refusal(() => new Response("<html>Sign in to the network</html>"), ask), { status: 0, code: "garbled", message: "" });
  }
});

test("a refusal always says something", async () => {
  assert.deepEqual(await refusal(() => new Response("<html>", { status: 502, statusText: "" }), () => getJson("/a")), { status: 502, code: "http_502", message: "HTTP 502" });
  assert.deepEqual(await refusal(() => new Response(cut(), { status: 500 }), () => getJson("/a")), { status: 500, code: "http_500", message: "HTTP 500" });
  assert.deepEqual(await refusal(() => Response.json({ error: { code: "busy", message: "later", hint: "" } }, { status: 503 }), () => getJson("/a")), { status: 503, code: "busy", message: "later" });
});

test("an answer without words is none", async () => {
  globalThis.fetch = async () => new Response(null, { status: 204 });
  try {
    assert.equal(await send("DELETE", "/a"), null);
  } finally {
    globalThis.fetch = fetch;
  }
});
