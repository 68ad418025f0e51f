import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

const web = new URL("../../web/", import.meta.url);
const index = readFileSync(new URL("index.html", web), "utf8");
const modules = readdirSync(web, { recursive: true }).filter((name) => name.endsWith(".js") && !name.startsWith("node_modules"));

/** The modules that a module imports, those of these, and so on, without itself. @param {string} entry */
function neededBy(entry) {
  /** @type {Set<string>} */
  const found = new Set([entry]);
  for (const name of found) {
    const source = readFileSync(new URL(name, web), "utf8");
    for (const [, address] of source.matchAll(/^(?:import|export)\b[^;"]*"(\.[^"]+)";$/gm)) found.add(new URL(address ?? "", new URL(name, web)).href.slice(web.href.length));
  }
  found.delete(entry);
  return found;
}

/** @param {RegExp} line */
const named = (line) => [...index.matchAll(line)].map((match) => match[1]);

test("the page asks for every module at once instead of finding them one import at a time", () => {
  const preloaded = named(/rel="modulepreload"[^>]* href="\/static\/([^"]+)"/g);
  const needed = modules.filter((name) => !["main.js", "first.js", "data/types.js"].includes(name)); // entries, and types alone
  assert.deepEqual(preloaded.toSorted(), needed.toSorted());
});

test("what the first questions need is asked for before all the rest, and they before what is left of it", () => {
  const [first = [], rest = []] = [named(/rel="modulepreload" href="\/static\/([^"]+)"/g), named(/rel="modulepreload" fetchpriority="low" href="\/static\/([^"]+)"/g)];
  assert.deepEqual(first, [...neededBy("first.js")].sort());
  assert.deepEqual(rest, rest.toSorted());
  assert(index.indexOf("/static/first.js") < index.indexOf("modulepreload") && index.indexOf('rel="modulepreload" href') < index.indexOf("stylesheet"));
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
