import assert from "node:assert/strict";
import test from "node:test";

/** Of a page of its own. @param {string} page @returns {Promise<typeof import("../../web/early.js")>} */
const opened = (page) => import(`../../web/early.js?${page}`);

const { fetch } = globalThis;
const clock = performance.now;

test("an early answer is given once, while it is fresh", async () => {
  let now = 1000;
  const { JSON_TYPE, askEarly, early } = await opened("fresh");
  performance.now = () => now;
  globalThis.fetch = async () => new Response("{}");
  try {
    await askEarly("/a", JSON_TYPE);
    await askEarly("/old", JSON_TYPE);
    now += 9_999;
    assert.equal((await early("/a"))?.status, 200);
    now += 2;
    assert.equal(await early("/old"), null);
    assert.equal(await early("/a"), null);
  } finally {
    performance.now = clock;
    globalThis.fetch = fetch;
  }
});

test("what the page has asked for itself is not asked for again", async () => {
  const { JSON_TYPE, askEarly, early } = await opened("overtaken");
  let asked = 0;
  globalThis.fetch = async () => (asked++, new Response("{}"));
  try {
    assert.equal(await early("/a"), null);
    assert.equal(await askEarly("/a", JSON_TYPE), null);
    assert.equal(asked, 0);
  } finally {
    globalThis.fetch = fetch;
  }
});

test("a question that waits for another is held from the start, and not asked where it need not be", async () => {
  const { JSON_TYPE, askEarly, early } = await opened("waiting");
  /** @type {string[]} */
  const asked = [];
  globalThis.fetch = async (path) => (asked.push(String(path)), new Response("{}"));
  try {
    void askEarly("/a", JSON_TYPE, Promise.resolve(true));
    void askEarly("/b", JSON_TYPE, Promise.resolve(false));
    assert.equal((await early("/a"))?.status, 200);
    assert.equal(await early("/b"), null);
    assert.deepEqual(asked, ["/a"]);
  } finally {
    globalThis.fetch = fetch;
  }
});

test("a refusal is asked for again", async () => {
  const { JSON_TYPE, askEarly, early } = await opened("refused");
  globalThis.fetch = async () => new Response("", { status: 401 });
  try {
    await askEarly("/b", JSON_TYPE);
    assert.equal(await early("/b"), null);
  } finally {
    globalThis.fetch = fetch;
  }
});
