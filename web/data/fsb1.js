/**
 * FSB1 blocks: "FSB1", a uint32 header length, a JSON header padded with spaces to a multiple of 8, then arrays, each
 * padded to 8 bytes. All little-endian, as the typed arrays of every platform that runs a browser are.
 */

/** float32 bits that mean "not observed". A NaN that was observed has other bits, so read them through Uint32Array. */
export const MISSING_BITS = 0x7fc00001;

const MAGIC = 0x31425346; // "FSB1"
const PREFIX = 8;

const TYPES = {
  "<f4": Float32Array,
  "<f8": Float64Array,
  "<i4": Int32Array,
  "<u4": Uint32Array,
  "<u2": Uint16Array,
  "|u1": Uint8Array,
  "<i8": BigInt64Array,
  "<u8": BigUint64Array,
};

/** @typedef {Float32Array | Float64Array | Int32Array | Uint32Array | Uint16Array | Uint8Array | BigInt64Array | BigUint64Array} Numbers */
/** @typedef {{ data: Numbers, shape: number[] }} BlockArray */
/** @typedef {{ meta: Record<string, unknown>, arrays: Map<string, BlockArray> }} Block */

/**
 * Views into `buffer`; nothing is copied.
 * @param {ArrayBuffer} buffer
 * @returns {Block}
 * @throws {RangeError} when the bytes are no such block
 */
export function decodeBlock(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < PREFIX || view.getUint32(0, true) !== MAGIC) throw new RangeError("not an FSB1 block");
  const length = view.getUint32(4, true);
  const start = PREFIX + length;
  if (start > buffer.byteLength || start % 8 !== 0) throw new RangeError(`an FSB1 header of ${length} bytes does not fit`);
  /** @type {{ meta: Record<string, unknown>, arrays: { name: string, dtype: string, shape: number[], offset: number }[] }} */
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, PREFIX, length)));
  /** @type {Map<string, BlockArray>} */
  const arrays = new Map();
  for (const { name, dtype, shape, offset } of header.arrays) {
    const Type = TYPES[/** @type {keyof typeof TYPES} */ (dtype)];
    if (Type === undefined) throw new RangeError(`array ${name} has the unknown type ${dtype}`);
    const size = shape.reduce((product, side) => product * side, 1);
    if (start + offset + size * Type.BYTES_PER_ELEMENT > buffer.byteLength) throw new RangeError(`array ${name} is cut off`);
    arrays.set(name, { data: new Type(buffer, start + offset, size), shape });
  }
  return { meta: header.meta, arrays };
}

/**
 * @param {Block} block
 * @param {string} name
 * @returns {{ data: Float32Array, shape: number[] }}
 */
export function float32(block, name) {
  const array = block.arrays.get(name);
  if (!(array?.data instanceof Float32Array)) throw new RangeError(`the block has no float32 array ${name}`);
  return { data: array.data, shape: array.shape };
}

/**
 * The same bytes as bit patterns: arithmetic on a NaN may change its payload, copying bits does not.
 * @param {Float32Array} values
 */
export function bitsOf(values) {
  return new Uint32Array(values.buffer, values.byteOffset, values.length);
}
