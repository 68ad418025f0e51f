import assert from "node:assert/strict";
import test from "node:test";
import { RIGHT, blockOf, followEnd, linesFor, pinched, shortBlock, stepAt, xOf } from "../../web/data/geometry.js";
import { palettes } from "../../web/data/colour.js";
import { drawCells } from "../../web/data/heatmap.js";
import { NONFINITE, NORMAL, OVER } from "../../web/data/scale.js";

test("a step and its place are each other's inverse, edges included", () => {
  const range = { from: 100, to: 299 };
  for (const step of [100, 101, 200, 299]) {
    assert.equal(stepAt(xOf(step + 0.5, range, 212, 1000), range, 212, 1000), step);
  }
  assert.equal(xOf(100, range, 212, 1000), 212);
  assert.equal(xOf(300, range, 212, 1000), 1000 - RIGHT);
  assert.equal(stepAt(0, range, 212, 1000), 100);
  assert.equal(stepAt(5000, range, 212, 1000), 299);
});

test("the axis of a growing run moves rarely and stays close ahead", () => {
  for (const from of [0, 1000]) {
    /** @type {number[]} */
    const ends = [];
    for (let last = from; last < from + 4000; last++) {
      const end = followEnd(from, last);
      assert(end >= last && end - last <= Math.max(1, (last - from) / 16), `${last} ${end}`);
      ends.push(end);
    }
    assert(new Set(ends).size < 200);
  }
});

test("rows fill the height in whole pixels and are pooled only when they have to be", () => {
  assert.deepEqual(linesFor(38, 600), { lines: 38, each: 1, height: 15 });
  assert.deepEqual(linesFor(300, 600), { lines: 300, each: 1, height: 2 });
  assert.deepEqual(linesFor(1000, 600), { lines: 500, each: 2, height: 1 });
  assert.deepEqual(linesFor(1, 600), { lines: 1, each: 1, height: 16 });
});

test("a layer belongs to the block that its first number names", () => {
  assert.equal(blockOf("model.layers.12.mlp.down_proj"), "model.layers.12");
  assert.equal(blockOf("lm_head"), "lm_head");
  assert.equal(shortBlock("model.layers.12", 6), ".12");
  assert.equal(shortBlock("layers.0.mlp.down", 6), "down");
  assert.equal(shortBlock("model.layers.12", 20), "model.layers.12");
});

test("pixels: plain cells are plain, the over ones hatched, the broken ones crossed, beyond the data nothing", () => {
  const palette = palettes.dark;
  const cells = { colours: Uint32Array.of(1, 2, palette.mark), classes: Uint8Array.of(NORMAL, OVER, NONFINITE) };
  const [width, height] = [48, 12];
  const pixels = new Uint32Array(width * height);
  drawCells(cells, 1, 3, pixels, { width, height, left: 0, right: 36, density: 1 }, palette);
  const seen = (/** @type {number} */ from, /** @type {number} */ to) =>
    new Set(Array.from({ length: height - 1 }, (_, y) => [...pixels.slice(y * width + from, y * width + to)]).flat());
  assert.deepEqual(seen(0, 12), new Set([1]));
  assert.deepEqual(seen(12, 24), new Set([2, palette.hatch]));
  assert.deepEqual(seen(24, 36), new Set([palette.mark, palette.cross]));
  assert.deepEqual(seen(36, 48), new Set([palette.missing]));
});

test("two fingers keep what is under them", () => {
  const [gutter, width] = [56, 56 + 400 + RIGHT];
  const range = { from: 1000, to: 1399 };
  const at = (/** @type {number} */ step, /** @type {import("../../web/data/geometry.js").Range} */ of) => xOf(step, of, gutter, width);
  const nearer = pinched([at(1100, range), at(1300, range)], [156, 356], range, gutter, width, 9999);
  assert.deepEqual(nearer, range, "no move, no change");
  const zoomed = pinched([at(1150, range), at(1250, range)], [156, 356], range, gutter, width, 9999);
  assert.deepEqual(zoomed, { from: 1100, to: 1299 });
  assert.equal(Math.round(at(1150, zoomed)), 156);
  const moved = pinched([200, 210], [300, 310], range, gutter, width, 9999);
  assert.deepEqual(moved, { from: 900, to: 1299 });
  assert.deepEqual(pinched([100, 400], [240, 250], { from: 0, to: 99 }, gutter, width, 99), { from: 0, to: 99 }, "too near each other to zoom");
  assert.deepEqual(pinched([100, 400], [200, 260], { from: 0, to: 99 }, gutter, width, 99), { from: 0, to: 99 }, "no more than there is");
  assert.equal(pinched([200, 230], [57, 450], { from: 0, to: 9 }, gutter, width, 9).to, 7, "eight steps at least");
});
