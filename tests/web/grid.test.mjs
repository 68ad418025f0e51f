import assert from "node:assert/strict";
import test from "node:test";
import { MISSING_BITS, bitsOf } from "../../web/data/fsb1.js";
import { COLUMN_LIMIT, coarsen, columnOf, gridFrom, mergeColumns, poolRows, valueAt, worstBits, worstRow } from "../../web/data/grid.js";

/** @param {readonly (number | null)[]} values null: missing */
function cells(values) {
  const out = new Float32Array(values.length);
  const bits = bitsOf(out);
  values.forEach((value, i) => (value === null ? (bits[i] = MISSING_BITS) : (out[i] = value)));
  return out;
}

/**
 * @param {{ layers?: number, cell?: number, columns?: number[], last?: number | null, worst?: "min" | "max" }} shape
 * @param {readonly (number | null)[]} values
 */
function grid({ layers = 2, cell = 1, columns = [], last = null, worst = "min" }, values = []) {
  const table = Array.from({ length: layers }, (_, i) => ({ index: 10 + i, name: `l${i}`, format: "e5m2", order: i }));
  return gridFrom({ kind: "grad", metric: "headroom", format: "auto", unit: "bits", worst, cell, columns, layers: table, last_step: last }, cells(values));
}

/** @param {ReturnType<typeof grid>} g @param {number} row */
const row = (g, row) => Array.from({ length: g.columns }, (_, column) => valueAt(g, row, column));

test("a grid is laid out by step, and steps that were not sent are missing", () => {
  const g = grid({ cell: 4, columns: [8, 16], last: 18 }, [1, 2, null, 4]);
  assert.equal(g.columns, 3);
  assert.deepEqual(row(g, 0), [1, undefined, 2]);
  assert.deepEqual(row(g, 1), [undefined, undefined, 4]);
  assert.equal(columnOf(g, 15), 1);
  assert.equal(valueAt(g, 2, 0), undefined);
});

test("missing never wins, an observed NaN and the worse infinity always do", () => {
  const [one, two, nan, least] = bitsOf(Float32Array.of(1, 2, NaN, -Infinity));
  assert(one !== undefined && two !== undefined && nan !== undefined && least !== undefined);
  assert.equal(worstBits(MISSING_BITS, one, true), one);
  assert.equal(worstBits(one, MISSING_BITS, false), one);
  assert.equal(worstBits(one, two, true), one);
  assert.equal(worstBits(one, two, false), two);
  assert.equal(worstBits(nan, one, true), nan);
  assert.equal(worstBits(one, nan, false), nan);
  assert.equal(worstBits(one, least, true), least);
});

test("live columns extend the grid and merge into the cell they fall in", () => {
  const g = grid({ cell: 2, columns: [0, 2], last: 2 }, [5, 3, 9, null]);
  assert(mergeColumns(g, 3, [10, 11], cells([1, null, 7, 6])));
  assert.deepEqual(row(g, 0), [5, 1, 7]);
  assert.deepEqual(row(g, 1), [9, undefined, 6]);
  assert.equal(g.last, 4);
});

test("columns of a layer nobody told of are reported, the known ones kept", () => {
  const g = grid({ columns: [0] , last: 0 }, [5, 5]);
  assert.equal(mergeColumns(g, 1, [10, 99], cells([2, 0])), false);
  assert.deepEqual(row(g, 0), [5, 2]);
});

test("an empty grid starts at the first live step", () => {
  const g = grid({});
  assert(mergeColumns(g, 7, [10, 11], cells([1, 2, 3, 4])));
  assert.equal(g.first, 7);
  assert.deepEqual(row(g, 1), [2, 4]);
});

test("pooling by two keeps cells aligned and keeps the spike", () => {
  const g = grid({ layers: 1, columns: [3, 4, 5, 6], last: 6 }, [3, 9, -4, 6]);
  coarsen(g);
  assert.deepEqual([g.cell, g.first, g.columns], [2, 2, 3]);
  assert.deepEqual(row(g, 0), [3, -4, 6]);
  coarsen(g);
  assert.deepEqual([g.cell, g.first], [4, 0]);
  assert.deepEqual(row(g, 0), [3, -4]);
});

test("live data past the limit gives the same grid as pooling everything at once", () => {
  const steps = COLUMN_LIMIT * 3 + 17;
  const values = Array.from({ length: steps }, (_, i) => Math.sin(i) * 100);
  const g = grid({ layers: 1, columns: [0], last: 0 }, [values[0] ?? 0]);
  for (let step = 1; step < steps; step += 5) mergeColumns(g, step, [10], cells(values.slice(step, step + 5)));
  assert.equal(g.cell, 4);
  assert(g.columns <= COLUMN_LIMIT);
  for (let column = 0; column < g.columns; column++) {
    const expected = Math.min(...values.slice(column * 4, column * 4 + 4));
    assert.equal(valueAt(g, 0, column), Math.fround(expected));
  }
});

test("rows pooled for the screen keep the worst layer, and it can be found again", () => {
  const g = grid({ layers: 5, columns: [0, 1], last: 1 }, [5, 5, 4, 4, null, 3, -2, null, 8, 8]);
  const pooled = poolRows(g, 3);
  assert.deepEqual([pooled.each, pooled.lines], [2, 3]);
  const values = new Float32Array(pooled.bits.buffer);
  assert.deepEqual([...values].slice(0, 4), [4, 4, -2, 3]);
  assert.equal(worstRow(g, 0, 2, 4), 3);
  assert.equal(worstRow(g, 1, 2, 4), 2);
  assert.equal(poolRows(g, 100).each, 1);
});
