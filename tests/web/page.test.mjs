import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

const web = new URL("../../web/", import.meta.url);
const index = readFileSync(new URL("index.html", web), "utf8");
const modules = readdirSync(web, { recursive: true }).filter((name) => name.endsWith(".js") && !name.startsWith("node_modules"));

test("the page asks for every module at once instead of finding them one import at a time", () => {
  const preloaded = [...index.matchAll(/rel="modulepreload" href="\/static\/([^"]+)"/g)].map((match) => match[1]);
  const needed = modules.filter((name) => name !== "main.js" && name !== "data/types.js"); // the entry itself, and types alone
  assert.deepEqual(preloaded, needed.sort());
});

test("nothing on the page comes from elsewhere, nothing is inline", () => {
  for (const [, address] of index.matchAll(/(?:src|href)="([^"]*)"/g)) assert.match(address ?? "", /^\/static\//);
  assert(!/<script(?![^>]*src=)/.test(index) && !/ style=| on\w+=|<style/.test(index));
});

test("text becomes text: no module writes markup", () => {
  for (const name of modules) {
    const source = readFileSync(new URL(name, web), "utf8");
    assert(!/innerHTML|outerHTML|insertAdjacentHTML|document\.write|new Function|\beval\(/.test(source), name);
    assert(source.split("\n").length < 300, `${name} is too long`);
  }
});

test("a class that one sheet lays out is not laid out by another", () => {
  /** @type {Map<string, string>} */
  const owner = new Map();
  const style = new URL("style/", web);
  for (const sheet of readdirSync(style, { recursive: true })) {
    for (const [, name] of readFileSync(new URL(sheet, style), "utf8").matchAll(/^(\.[\w-]+)(?: \{|,$)/gm)) {
      assert.equal(owner.get(name ?? "") ?? sheet, sheet, name);
      owner.set(name ?? "", sheet);
    }
  }
});
