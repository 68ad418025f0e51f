import assert from "node:assert/strict";
import test from "node:test";

import { JSON_TYPE, askEarly, askedAll, early } from "../../web/early.js";

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

test("a question that waits for another is held from the start, and not asked where it need not be", async () => {
  /** @type {string[]} */
  const asked = [];
  globalThis.fetch = async (path) => (asked.push(String(path)), new Response("{}"));
  try {
    void askEarly("/there", JSON_TYPE, Promise.resolve(true));
    void askEarly("/not there", JSON_TYPE, Promise.resolve(false));
    assert.equal((await early("/there"))?.status, 200);
    assert.equal(await early("/not there"), null);
    assert.deepEqual(asked, ["/there"]);
  } finally {
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

test("what the page has asked already is not asked early", async () => {
  /** @type {unknown[]} */
  const asked = [];
  globalThis.fetch = async (path) => (asked.push(path), new Response("{}"));
  try {
    assert.equal(await early("/c"), null);
    assert.equal(await askEarly("/c", JSON_TYPE), null);
    assert.equal((await askEarly("/d", JSON_TYPE))?.status, 200);
    assert.deepEqual(asked, ["/d"]);
    // What it asks later on is not remembered.
    askedAll();
    assert.equal(await early("/e"), null);
    assert.equal((await askEarly("/e", JSON_TYPE))?.status, 200);
  } finally {
    globalThis.fetch = fetch;
  }
});
