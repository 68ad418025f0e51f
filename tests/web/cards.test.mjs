import assert from "node:assert/strict";
import test from "node:test";
import { balanceOf, bandsOf, cardKey, cardsOf, cellsOf, inOrder, meansOf, phaseShares, readingsFrom, readingsOf, recentSpan, rowName, stepAt, stepMarks, timeOf, timeTicks, wholeSpan } from "../../web/data/cards.js";
import { emptySeries } from "../../web/data/series.js";
import { start } from "../../web/data/text.js";

const GIB = 2 ** 30;

/** @param {number} at @param {Partial<import("../../web/data/types.js").DeviceSample>} [more] */
const sample = (at, more = {}) => ({ time_ns: at * 1e9, backend: "rocm", index: 0, rank: 0, pci: "0000:01:00", name: "card", busy_percent: 50, ...more });

test("a card that gets another index stays one card", () => {
  const cards = cardsOf([sample(1, { index: 0 }), sample(2, { index: 4 })], []);
  assert.deepEqual(cards.map(({ index, silent }) => [index, silent]), [[4, false]]);
});

test("the same address on the machine of another rank is another card", () => {
  assert.equal(cardsOf([sample(1), sample(1, { rank: 8 })], []).length, 2);
});

test("a card that stopped answering is silent, whatever one clock says", () => {
  const ids = ["a", "b", "c"];
  const cards = cardsOf([...ids.map((pci) => sample(100, { pci })), sample(70, { pci: "gone" }), sample(86_500, { pci: "ahead" })], []);
  assert.deepEqual(cards.filter(({ silent }) => silent).map(({ pci }) => pci), ["gone"]);
  assert.deepEqual(recentSpan([sample(100)]), { from: 70, to: 101 });
});

test("a figure that could not be read leaves its cell open, and a zero does not", () => {
  const readings = readingsOf([sample(0, { busy_percent: null }), sample(5, { busy_percent: 0 })], "busy_percent");
  const cells = cellsOf([cardKey(sample(0))], readings, { from: 0, to: 10 }, 2);
  assert.deepEqual([...cells.mean], [NaN, 0]);
  assert.deepEqual([...cells.low], [NaN, 0]);
  assert.deepEqual(meansOf(cells, 1), [0]);
});

test("one reading among thousands is in the extremes of its cell", () => {
  const readings = Array.from({ length: 4000 }, (_, i) => sample(i, { busy_percent: i === 1234 ? 0 : 90 }));
  const cells = cellsOf([cardKey(sample(0))], readingsOf(readings, "busy_percent"), { from: 0, to: 4000 }, 40);
  assert.equal(Math.min(...cells.low), 0);
  assert.equal([...cells.low].indexOf(0), 12);
});

test("pooled cells fill the time that they cover", () => {
  const series = { rank: 0, backend: "rocm", index: 0, pci: "p", name: null, vram_total_bytes: 4 * GIB, figure: "vram_used_bytes", cell: 64, times: [0, 64], values: [GIB, 2 * GIB], min: [0, GIB], max: [4 * GIB, 3 * GIB] };
  const readings = readingsFrom([series], "vram");
  const span = wholeSpan(readings);
  assert.deepEqual(span, { from: 0, to: 128 });
  const cells = cellsOf([cardKey(series)], readings, span ?? { from: 0, to: 1 }, 240);
  assert.deepEqual([[...cells.mean], [...cells.low], [...cells.high]], [[25, 50], [0, 25], [100, 75]]);
  assert.deepEqual(readingsFrom([{ ...series, vram_total_bytes: null }], "vram").map(({ mean }) => mean), [NaN, NaN]);
});

test("balance is between cards that were read", () => {
  assert.deepEqual(balanceOf([90, NaN, 60, 80]), { low: 2, high: 0, spread: 30 });
  assert.equal(balanceOf([90, NaN]), null);
});

test("bands of memory add up, and what is not known is no band", () => {
  const bands = bandsOf(sample(0, { vram_total_bytes: 100, vram_used_bytes: 80, allocated_bytes: 40, reserved_bytes: 70 }));
  assert.deepEqual(bands, { total: 100, used: 80, allocated: 40, cached: 30, other: 10, free: 20 });
  assert.equal(bandsOf(sample(0, { vram_total_bytes: 100, vram_used_bytes: null })), null);
  assert.deepEqual(bandsOf(sample(0, { vram_total_bytes: 100, vram_used_bytes: 80 })), { total: 100, used: 80, allocated: null, cached: null, other: null, free: 20 });
});

test("steps and times follow from one another, but not across a restart", () => {
  const times = [{ step: 9, at: 100, attempt: 1 }, { step: 19, at: 110, attempt: 1 }, { step: 15, at: 500, attempt: 2 }, { step: 25, at: 510, attempt: 2 }];
  assert.equal(stepAt(times, 104.5), 14);
  assert.equal(stepAt(times, 300), null);
  assert.equal(stepAt(times, 99), null);
  assert.equal(timeOf(times, 20), 505);
  assert.equal(timeOf(times, 12), 103);
  assert.equal(timeOf(times, 99), null);
  assert.deepEqual(stepMarks(times, { from: 495, to: 512 }, 2), [{ step: 15, at: 500 }, { step: 20, at: 505 }, { step: 25, at: 510 }]);
});

test("ticks are at round local times", () => {
  assert.deepEqual(timeTicks({ from: 1000, to: 1300 }, 5, 0), [1020, 1080, 1140, 1200, 1260]);
  // Half an hour off the hour, as in India.
  assert.deepEqual(timeTicks({ from: 0, to: 7200 }, 2, -1800), [1800, 5400]);
});

test("phases come in the order of a step and add up", () => {
  assert.deepEqual(inOrder(["phase/optimizer_s", "phase/zz_s", "phase/data_s"]), ["phase/data_s", "phase/optimizer_s", "phase/zz_s"]);
  const phases = [{ ...emptySeries("phase/data_s"), steps: [0, 1], values: [1, NaN] }, { ...emptySeries("phase/forward_s"), steps: [0, 1], values: [3, 3] }, emptySeries("phase/none")];
  assert.deepEqual(phaseShares(phases).map(({ share }) => share), [0.25, 0.75, NaN]);
});

test("rows of cards are told apart where there is little room", () => {
  const names = ["AMD Instinct MI300X", "NVIDIA H100 80GB HBM3 of a very long name"].flatMap((name) => [0, 1].map((index) => start(rowName({ rank: 12, index, name, backend: "cuda" }), 23)));
  assert.deepEqual(names, ["12 \u00b7 0 \u00b7 MI300X", "12 \u00b7 1 \u00b7 MI300X", "12 \u00b7 0 \u00b7 H100 80GB HBM\u2026", "12 \u00b7 1 \u00b7 H100 80GB HBM\u2026"]);
  assert(start("12 \u00b7 0 \u00b7 MI300X", 23) === "12 \u00b7 0 \u00b7 MI300X" && start("abc def", 5) === "abc\u2026");
});
