import assert from "node:assert/strict";
import test from "node:test";
import { SELDOM, healthOf, isNarrow, isSlowed } from "../../web/data/card-health.js";
import { cardKey } from "../../web/data/cards.js";

/** @param {number} at @param {Partial<import("../../web/data/types.js").DeviceSample>} [more] */
const sample = (at, more = {}) => ({ time_ns: at * 1e9, backend: "rocm", index: 0, rank: 0, pci: "0000:01:00", ...more });

test("the newest of each figure counts, however long ago it was read", () => {
  const samples = [sample(0, { pcie_width: 16, ecc_uncorrected: 0 }), sample(1), sample(10, { ecc_uncorrected: 2 }), sample(20, { throttle_thermal_percent: null })];
  assert.deepEqual(healthOf(samples).get(cardKey(sample(0))), { pcie_width: 16, ecc_uncorrected: 2 });
  assert.equal(healthOf([sample(0)]).size, 0);
});

test("what could not be had is not known, and a zero is", () => {
  const found = healthOf([sample(0, { throttle_thermal_percent: "NaN", ecc_corrected: null, pcie_replays: 0 })]);
  assert.deepEqual([...found.values()], [{ pcie_replays: 0 }]);
});

test("cards are told apart", () => {
  const found = healthOf([sample(0, { pcie_width: 16 }), sample(0, { pci: "0000:02:00", pcie_width: 8 }), sample(0, { rank: 3, pcie_width: 4 })]);
  assert.deepEqual([...found.values()].map(({ pcie_width: width }) => width), [16, 8, 4]);
});

test("a link is narrow where it could have more", () => {
  assert.equal(isNarrow({ pcie_width: 8, pcie_max_width: 16 }), true);
  assert.equal(isNarrow({ pcie_width: 8, pcie_max_width: 8 }), false);
  assert.equal(isNarrow({ pcie_width: 8 }), false);
  assert.equal(isNarrow({ pcie_max_width: 8 }), false);
  assert.deepEqual([undefined, 0, 20, 21].map(isSlowed), [false, false, false, true]);
});

test("no figure is named twice", () => {
  assert.equal(new Set(SELDOM).size, SELDOM.length);
});
