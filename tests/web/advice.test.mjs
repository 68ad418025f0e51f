import assert from "node:assert/strict";
import test from "node:test";
import { LOST_SHARE, MARGIN_BITS, advise } from "../../web/data/advice.js";
import { formats, zeroAtOrBelow } from "../../web/data/formats.js";
import { binOf } from "../../web/data/histogram.js";

/** Histogram of magnitudes, by the definition of the bins: (edge, next edge]. @param {readonly number[]} values */
function histogram(values) {
  const counts = new Map();
  for (const value of values) {
    const octave = Math.ceil(Math.log2(value)) - 1;
    const bin = binOf(octave) + (value > 1.5 * 2 ** octave ? 1 : 0);
    counts.set(bin, (counts.get(bin) ?? 0) + 1);
  }
  const first = Math.min(...counts.keys());
  const last = Math.max(...counts.keys());
  return [{ first_step: 0, steps: 1, first, counts: Array.from({ length: last - first + 1 }, (_, i) => counts.get(first + i) ?? 0) }];
}

/** Spread evenly over octaves. @param {number} low @param {number} high log2 @param {number} each values an octave */
const octaves = (low, high, each) => Array.from({ length: (high - low) * each }, (_, i) => 2 ** (low + (i + 0.5) / each));

test("what is said of a format bounds what its cast would do", () => {
  const values = octaves(-24, 3, 40);
  const { fits } = advise(histogram(values), false);
  for (const { format: name, scale, lost, subnormal, headroom } of fits) {
    const format = formats.get(name);
    assert(format);
    const scaled = values.map((value) => value * 2 ** scale);
    const zeros = scaled.filter((value) => value <= zeroAtOrBelow(format)).length / values.length;
    const small = scaled.filter((value) => value < format.minNormal).length / values.length;
    assert(zeros <= lost && lost - zeros <= 0.04, name);
    assert(small <= lost + subnormal + 1e-12, name);
    assert(Math.max(...scaled) <= format.max * 2 ** -Math.min(MARGIN_BITS, headroom) + 1e-9, name);
  }
});

test("the narrowest format that keeps the values is suggested", () => {
  assert.equal(advise(histogram(octaves(-6, 0, 50)), false).best?.format, "e4m3fn");
  assert.equal(advise(histogram(octaves(-6, 0, 50)), true).best?.format, "e4m3fnuz");
  assert.equal(advise(histogram(octaves(-26, 0, 50)), false).best?.format, "e5m2");
  assert.equal(advise(histogram(octaves(-36, 0, 50)), false).best?.format, "fp16");
  assert.equal(advise(histogram(octaves(-60, 0, 50)), false).best?.format, "bf16");
  assert.deepEqual(advise([], false), { fits: [], best: null });
});

test("a rare outlier costs no format as long as the share that is lost stays small", () => {
  const values = [...octaves(-5, 0, 1000), 2 ** -40];
  const { best } = advise(histogram(values), false);
  assert.equal(best?.format, "e4m3fn");
  assert(best !== null && best.lost > 0 && best.lost <= LOST_SHARE);
});
