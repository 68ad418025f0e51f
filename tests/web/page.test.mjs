import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

const web = new URL("../../web/", import.meta.url);
const index = readFileSync(new URL("index.html", web), "utf8");
const modules = readdirSync(web, { recursive: true }).filter((name) => name.endsWith(".js") && !name.startsWith("node_modules"));

const STATIC = /^(?:import|export)\b[^;"]*"(\.[^"]+)";$/gm;
const ANY = /^(?:import|export)\b[^;"]*"(\.[^"]+)";$|\bimport\("(\.[^"]+)"\)(?!\.)/gm;

/** The modules that a module imports, those of these, and so on, without itself. @param {string} entry @param {RegExp} imports */
function neededBy(entry, imports) {
  /** @type {Set<string>} */
  const found = new Set([entry]);
  for (const name of found) {
    const source = readFileSync(new URL(name, web), "utf8").replaceAll(/\/\*.*?\*\//gs, "");
    for (const [, one, later] of source.matchAll(imports)) found.add(new URL(one ?? later ?? "", new URL(name, web)).href.slice(web.href.length));
  }
  found.delete(entry);
  return [...found].sort();
}

/** @param {RegExp} line */
const named = (line) => [...index.matchAll(line)].map((match) => match[1]);

test("the page asks at once for every module that an overview needs, and first for those of the first questions", () => {
  const first = neededBy("first.js", STATIC);
  assert.deepEqual(named(/rel="modulepreload" href="\/static\/([^"]+)"/g), first);
  assert.deepEqual(named(/rel="modulepreload" fetchpriority="low" href="\/static\/([^"]+)"/g), neededBy("main.js", STATIC).filter((name) => !first.includes(name)));
  assert(index.indexOf("/static/first.js") < index.indexOf("modulepreload") && index.indexOf('rel="modulepreload" href') < index.indexOf("stylesheet"));
});

test("the others come with the place or the language that needs them", () => {
  const now = new Set(neededBy("main.js", STATIC));
  const ever = neededBy("main.js", ANY);
  assert.deepEqual([...ever, "main.js", "first.js", "data/types.js"].sort(), modules.toSorted()); // types alone
  for (const later of ["desk.js", "view/desk/page.js", "view/compare/page.js", "view/run/devices.js", "i18n/en.js", "i18n/zh.js"]) assert(ever.includes(later) && !now.has(later), later);
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
