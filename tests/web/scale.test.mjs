import assert from "node:assert/strict";
import test from "node:test";
import { palettes, toSrgb } from "../../web/data/colour.js";
import { MISSING_BITS, bitsOf } from "../../web/data/fsb1.js";
import { MISSING, NONFINITE, NORMAL, OVER, UNDER, classify, colour, legendTicks, paint, position, scaleFor } from "../../web/data/scale.js";

/** @param {number} word sRGB @returns {[number, number, number]} OKLab */
function oklab(word) {
  const [r, g, b] = /** @type {[number, number, number]} */ (
    [word & 255, (word >> 8) & 255, (word >> 16) & 255].map((byte) => {
      const x = byte / 255;
      return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    })
  );
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

/** @param {number} a @param {number} b */
const distance = (a, b) => Math.hypot(...oklab(a).map((x, i) => x - (oklab(b)[i] ?? 0)));

test("OKLab reaches the corners of sRGB", () => {
  assert.deepEqual(toSrgb([1, 0, 0]), [255, 255, 255]);
  assert.deepEqual(toSrgb([0, 0, 0]), [0, 0, 0]);
  assert.deepEqual(toSrgb([0.62796, 0.22486, 0.12585]), [255, 0, 0]);
});

test("ramps are even and monotone in lightness, in both themes", () => {
  for (const palette of Object.values(palettes)) {
    for (const line of [palette.safe, palette.over, palette.positive, palette.negative]) {
      const samples = Array.from({ length: 9 }, (_, i) => line[Math.round((i * 255) / 8)] ?? 0);
      const steps = samples.slice(1).map((word, i) => distance(word, samples[i] ?? 0));
      const mean = steps.reduce((sum, step) => sum + step, 0) / steps.length;
      for (const step of steps) assert(Math.abs(step - mean) < 0.35 * mean, `uneven: ${steps.map((s) => s.toFixed(3))}`);
      const lightness = samples.map((word) => oklab(word)[0]);
      const signs = new Set(lightness.slice(1).map((l, i) => Math.sign(l - (lightness[i] ?? 0))));
      assert.equal(signs.size, 1);
    }
    assert(distance(palette.safe[255] ?? 0, palette.over[0] ?? 0) > 0.15, "the limit is a break in the scale");
  }
});

test("headroom: 0 bits is the limit, below it is over, minus infinity is not finite", () => {
  const scale = scaleFor("headroom", [3, 12]);
  assert.equal(position(scale, 0), 1);
  assert.equal(position(scale, 16), 0);
  assert.equal(position(scale, 100), 0);
  assert(position(scale, -0.001) > 1);
  assert.equal(position(scale, -40), 2);
  assert.deepEqual([5, 0, -0.1, -Infinity, NaN, Infinity].map((x) => classify(scale, x)), [NORMAL, NORMAL, OVER, NONFINITE, NONFINITE, NORMAL]);
  assert(legendTicks(scale).includes(0));
});

test("headroom in a wide format widens the scale in whole steps", () => {
  assert.equal(scaleFor("headroom", [118, 121.5]).low, 128);
  assert.equal(scaleFor("headroom", [2, 121.5]).low, 16);
  assert.equal(scaleFor("headroom", []).low, 16);
});

test("the other metrics: octaves, shares, signed means, counts", () => {
  assert.deepEqual(scaleFor("absmax", [2 ** -3, 2 ** 5, 0, Infinity]), { kind: "log2", low: -4, high: 6, beyond: 0 });
  const wild = [2 ** 60, ...Array.from({ length: 999 }, (_, i) => 2 ** (-8 + (i % 5)))];
  assert.deepEqual(scaleFor("absmax", wild), { kind: "log2", low: -8, high: -4, beyond: 0 });
  assert.equal(position(scaleFor("absmax", wild), 2 ** 60), 1);
  const share = scaleFor("underflow", []);
  assert.equal(position(share, 1), 1);
  assert.equal(position(share, 0), 0);
  assert(position(share, 0.1) > position(share, 0.01));
  const mean = scaleFor("mean", [-0.3, 0.1]);
  assert.equal(mean.high, 0.5);
  const palette = palettes.dark;
  assert.notEqual(colour(mean, palette, -0.3), colour(mean, palette, 0.3));
  assert.equal(classify(scaleFor("nonfinite", []), 2), NONFINITE);
  assert.equal(classify(scaleFor("absmax", [1]), Infinity), NONFINITE);
});

test("painting tells the four kinds of cell apart", () => {
  const values = Float32Array.of(5, -1, -Infinity, 0);
  const bits = bitsOf(values);
  bits[3] = MISSING_BITS;
  const { colours, classes } = paint(scaleFor("headroom", values), palettes.light, bits);
  assert.deepEqual([...classes], [NORMAL, OVER, NONFINITE, MISSING]);
  assert.equal(new Set(colours).size, 4);
  assert.equal(colours[2], palettes.light.mark);
});

test("a ratio is healthy in its band: above it is over, below it under, whatever the values are", () => {
  const scale = scaleFor("ratio", [1, 2], [1e-6, 1e-2]);
  assert.deepEqual([1e-4, 1e-2, 0.02, 1e-7, 0, Infinity].map((x) => classify(scale, x)), [NORMAL, NORMAL, OVER, UNDER, UNDER, NONFINITE]);
  assert.equal(position(scale, 1e-4), 0.5);
  assert.equal(position(scale, 0.1), 2);
  assert.deepEqual(legendTicks(scale), [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]);
  const dark = palettes.dark;
  assert.notEqual(colour(scale, dark, 0), colour(scale, dark, 1e-6));
  assert.equal(colour(scale, dark, 0.1), dark.over.at(-1));
});
