import assert from "node:assert/strict";
import test from "node:test";
import { MISSING_BITS, bitsOf, decodeBlock, float32 } from "../../web/data/fsb1.js";

/**
 * @param {unknown} meta @param {{ name: string, dtype: string, shape: number[], offset: number }[]} arrays @param {Uint8Array} data
 */
function block(meta, arrays, data) {
  const text = JSON.stringify({ meta, arrays });
  const padded = text.padEnd(Math.ceil((text.length + 8) / 8) * 8 - 8);
  const bytes = new Uint8Array(8 + padded.length + data.length);
  bytes.set(new TextEncoder().encode("FSB1"));
  new DataView(bytes.buffer).setUint32(4, padded.length, true);
  bytes.set(new TextEncoder().encode(padded), 8);
  bytes.set(data, 8 + padded.length);
  return bytes.buffer;
}

test("arrays are views with their shape, and missing keeps its own bits beside NaN and infinity", () => {
  const words = Uint32Array.of(0x3f800000, MISSING_BITS, 0x7fc00000, 0xff800000, 0, 0x40000000);
  const data = new Uint8Array(32);
  data.set(new Uint8Array(words.buffer));
  data.set(new Uint8Array(Uint16Array.of(7, 9).buffer), 24);
  const decoded = decodeBlock(
    block({ type: "heat" }, [{ name: "values", dtype: "<f4", shape: [2, 3], offset: 0 }, { name: "bins", dtype: "<u2", shape: [2], offset: 24 }], data),
  );
  assert.deepEqual(decoded.meta, { type: "heat" });
  const values = float32(decoded, "values");
  assert.deepEqual(values.shape, [2, 3]);
  assert.deepEqual([...bitsOf(values.data)], [...words]);
  assert.equal(values.data[0], 1);
  assert.equal(values.data[3], -Infinity);
  assert.deepEqual([...(decoded.arrays.get("bins")?.data ?? [])].map(Number), [7, 9]);
});

test("a header of more than ASCII is measured in bytes", () => {
  const text = JSON.stringify({ meta: { run: "调试" }, arrays: [] });
  const utf8 = new TextEncoder().encode(text);
  const length = Math.ceil((utf8.length + 8) / 8) * 8 - 8;
  const bytes = new Uint8Array(8 + length).fill(0x20);
  bytes.set(new TextEncoder().encode("FSB1"));
  new DataView(bytes.buffer).setUint32(4, length, true);
  bytes.set(utf8, 8);
  assert.deepEqual(decodeBlock(bytes.buffer).meta, { run: "调试" });
});

test("bytes that are no block say so", () => {
  assert.throws(() => decodeBlock(new ArrayBuffer(4)), /not an FSB1 block/);
  assert.throws(() => decodeBlock(new Uint8Array(64).buffer), /not an FSB1 block/);
  assert.throws(() => decodeBlock(block({}, [{ name: "v", dtype: "<f4", shape: [9, 9], offset: 0 }], new Uint8Array(8))), /cut off/);
  assert.throws(() => decodeBlock(block({}, [{ name: "v", dtype: "<c8", shape: [1], offset: 0 }], new Uint8Array(8))), /unknown type/);
  assert.throws(() => float32(decodeBlock(block({}, [], new Uint8Array(0))), "values"), /no float32 array/);
});
