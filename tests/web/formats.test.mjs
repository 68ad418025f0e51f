import assert from "node:assert/strict";
import test from "node:test";
import { band, formats, headroom, zeroAtOrBelow } from "../../web/data/formats.js";
import { binOf, columnEnds, edgeLog2, occupied, poolColumns, shares } from "../../web/data/histogram.js";

test("limits as the specifications give them", () => {
  const rows = /** @type {const} */ ([
    ["fp32", 3.4028234663852886e38, 2 ** -126, 2 ** -149],
    ["bf16", 3.3895313892515355e38, 2 ** -126, 2 ** -133],
    ["fp16", 65504, 2 ** -14, 2 ** -24],
    ["e4m3fn", 448, 2 ** -6, 2 ** -9],
    ["e4m3fnuz", 240, 2 ** -7, 2 ** -10],
    ["e5m2", 57344, 2 ** -14, 2 ** -16],
    ["e5m2fnuz", 57344, 2 ** -15, 2 ** -17],
    ["e3m2", 28, 0.25, 0.0625],
    ["e2m3", 7.5, 1, 0.125],
    ["e2m1", 6, 1, 0.5],
  ]);
  assert.deepEqual([...formats.keys()], rows.map(([name]) => name));
  for (const [name, max, normal, subnormal] of rows) {
    const row = formats.get(name);
    assert(row);
    assert.deepEqual([row.max, row.minNormal, row.minSubnormal, zeroAtOrBelow(row)], [max, normal, subnormal, subnormal / 2], name);
  }
});

test("headroom in bits, and a band that moves down as the scale goes up", () => {
  const row = formats.get("e5m2");
  assert(row);
  assert.equal(headroom(row, 28672), 1);
  assert.equal(headroom(row, 57344, 2), -1);
  assert.equal(band(row, 2 ** 10).limit, Math.log2(57344) - 10);
  assert.equal(band(row).zero, -17);
});

test("bins: two an octave, edges at 2^k and 1.5 * 2^k", () => {
  const float = new Float32Array(1);
  const word = new Uint32Array(float.buffer);
  for (const bin of [2, 100, 254, 255, 300]) {
    word[0] = bin << 22;
    const edge = Math.log2(float[0] ?? 0);
    assert(Math.abs(edgeLog2(bin) - edge) < 1e-12, `${bin}`);
    assert(Math.abs(binOf(edge) - bin) < 1e-9, `${bin}`);
  }
});

test("a column's shares add up over the occupied bins", () => {
  const columns = [
    { first_step: 0, steps: 1, first: 240, counts: [0, 1, 3] },
    { first_step: 1, steps: 1, first: 244, counts: [4, 0] },
  ];
  assert.deepEqual(occupied(columns), { low: 241, high: 244 });
  assert(columns[0]);
  assert.deepEqual([...shares(columns[0], 241, 244)], [0.25, 0.75, 0, 0]);
  assert.equal(occupied([{ first_step: 0, steps: 1, first: 9, counts: [0] }]), null);
});

test("columns pooled for the screen add up, at whatever bin each begins", () => {
  const columns = [
    { first_step: 0, steps: 1, first: 10, counts: [1, 2] },
    { first_step: 5, steps: 1, first: 8, counts: [4, 0, 8] },
    { first_step: 10, steps: 1, first: 9, counts: [1] },
  ];
  assert.deepEqual(poolColumns(columns, 2), [
    { first_step: 0, steps: 6, first: 8, counts: [4, 0, 9, 2] },
    { first_step: 10, steps: 1, first: 9, counts: [1] },
  ]);
  assert.deepEqual(poolColumns(columns, 3), columns);
});

test("a sample stands until the next one, but not across a gap", () => {
  const at = [0, 10, 20, 100].map((first_step) => ({ first_step, steps: 1, first: 0, counts: [1] }));
  assert.deepEqual(columnEnds(at), [10, 20, 40, 110]);
  assert.deepEqual(columnEnds([{ first_step: 3, steps: 4, first: 0, counts: [1] }]), [7]);
});
