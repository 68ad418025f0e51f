import assert from "node:assert/strict";
import test from "node:test";

import { keep, kept } from "../../web/kept.js";

/** A browser that keeps what it is told, or refuses to. @param {boolean} forbidden */
function browser(forbidden) {
  const held = new Map([["old", "from before"]]);
  const refused = () => {
    throw new DOMException("denied", "SecurityError");
  };
  const storage = { getItem: (/** @type {string} */ name) => (forbidden ? refused() : (held.get(name) ?? null)), setItem: refused };
  Object.defineProperty(globalThis, "localStorage", { value: storage, configurable: true });
}

test("a choice lasts as long as the page where the browser keeps nothing", () => {
  for (const forbidden of [true, false]) {
    browser(forbidden);
    const name = `theme ${forbidden}`;
    assert.equal(kept("old"), forbidden ? null : "from before");
    assert.equal(kept(name), null);
    keep(name, "light");
    assert.equal(kept(name), "light");
  }
});
