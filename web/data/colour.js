/**
 * Colour scales. A ramp runs through OKLab at constant speed, so equal steps of the value look equally large, and its
 * lightness is monotone, so it reads without hue. Emphasis is risk: what is far from the limit sinks into the background.
 */

/** @typedef {"dark" | "light"} Theme */
/** @typedef {readonly [l: number, c: number, h: number]} Lch lightness 0..1, chroma, hue in degrees */

const SIZE = 256;

/** @param {Lch} lch @returns {[number, number, number]} OKLab */
function toLab([l, c, h]) {
  const angle = (h * Math.PI) / 180;
  return [l, c * Math.cos(angle), c * Math.sin(angle)];
}

/**
 * https://bottosson.github.io/posts/oklab/
 * @param {readonly [number, number, number]} lab @returns {[number, number, number]} sRGB, 0..255
 */
export function toSrgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    encode(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    encode(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    encode(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

/** @param {number} linear */
function encode(linear) {
  const x = Math.min(1, Math.max(0, linear));
  return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
}

/** A pixel of ImageData read as one little-endian word. @param {readonly [number, number, number]} rgb */
function pack([r, g, b]) {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** @param {number} word @returns {string} CSS colour */
export function css(word) {
  return `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
}

/**
 * Straight from stop to stop, each stretch as long in the table as it is in OKLab.
 * @param {...Lch} stops two at least @returns {Uint32Array}
 */
export function ramp(...stops) {
  const labs = stops.map(toLab);
  const at = [0];
  for (let i = 1; i < labs.length; i++) at.push((at[i - 1] ?? 0) + distance(labs[i - 1] ?? [0, 0, 0], labs[i] ?? [0, 0, 0]));
  const total = at.at(-1) ?? 1;
  return Uint32Array.from({ length: SIZE }, (_, i) => {
    const way = (i / (SIZE - 1)) * total;
    const end = Math.max(1, at.findIndex((mark) => mark >= way - 1e-9));
    const [from, to] = [at[end - 1] ?? 0, at[end] ?? 1];
    return pack(toSrgb(mix(labs[end - 1] ?? [0, 0, 0], labs[end] ?? [0, 0, 0], (way - from) / (to - from))));
  });
}

/**
 * @param {readonly [number, number, number]} a @param {readonly [number, number, number]} b @param {number} t
 * @returns {[number, number, number]}
 */
function mix(a, b, t) {
  return [a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]), a[2] + t * (b[2] - a[2])];
}

/** @param {readonly [number, number, number]} a @param {readonly [number, number, number]} b */
function distance(a, b) {
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

/**
 * @typedef {object} Palette
 * @property {Uint32Array} safe from no concern to the limit
 * @property {Uint32Array} over from the limit to far above it; always drawn hatched
 * @property {Uint32Array} positive from nothing to a large positive value, for metrics with a sign
 * @property {Uint32Array} negative from nothing to a large negative value
 * @property {number} hatch line of the hatching
 * @property {number} mark ground of a non-finite cell
 * @property {number} cross its cross
 * @property {number} missing
 */

/** @type {Record<Theme, Palette>} */
export const palettes = {
  dark: {
    safe: ramp([0.24, 0.045, 250], [0.56, 0.085, 210], [0.93, 0.14, 102]),
    over: ramp([0.7, 0.19, 40], [0.5, 0.2, 18]),
    positive: ramp([0.24, 0.02, 90], [0.86, 0.14, 80]),
    negative: ramp([0.24, 0.02, 250], [0.8, 0.11, 235]),
    hatch: pack([24, 8, 8]),
    mark: pack([245, 247, 246]),
    cross: pack([150, 16, 40]),
    missing: pack([13, 18, 20]),
  },
  light: {
    safe: ramp([0.955, 0.03, 110], [0.7, 0.1, 195], [0.34, 0.1, 266]),
    over: ramp([0.58, 0.21, 30], [0.4, 0.16, 15]),
    positive: ramp([0.95, 0.015, 90], [0.46, 0.11, 55]),
    negative: ramp([0.95, 0.01, 240], [0.42, 0.13, 255]),
    hatch: pack([255, 238, 230]),
    mark: pack([18, 22, 24]),
    cross: pack([255, 190, 170]),
    missing: pack([250, 249, 245]),
  },
};
