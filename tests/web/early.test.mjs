import assert from "node:assert/strict";
import test from "node:test";

import { JSON_TYPE, askEarly, early } from "../../web/early.js";

const { fetch } = globalThis;
const clock = performance.now;

test("an early answer is given once, while it is fresh", async () => {
  let now = 1000;
  performance.now = () => now;
  globalThis.fetch = async () => new Response("{}");
  try {
    await askEarly("/a", JSON_TYPE);
    now += 9_999;
    assert.equal((await early("/a"))?.status, 200);
    assert.equal(await early("/a"), null);
    await askEarly("/a", JSON_TYPE);
    now += 10_001;
    assert.equal(await early("/a"), null);
  } finally {
    performance.now = clock;
    globalThis.fetch = fetch;
  }
});

test("a refusal is asked for again", async () => {
  globalThis.fetch = async () => new Response("", { status: 401 });
  try {
    await askEarly("/b", JSON_TYPE);
    assert.equal(await early("/b"), null);
  } finally {
    globalThis.fetch = fetch;
  }
});
