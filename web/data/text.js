/** Numbers as text: fixed widths where figures change in place, units always. */

const MINUS = "\u2212";
const NONE = "\u2014";

/** @param {number} value @param {number} digits */
export function fixed(value, digits) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+\u221e" : `${MINUS}\u221e`;
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? MINUS + text : text;
}

/** Headroom in bits without the unit. @param {number | undefined} value */
export function bits(value) {
  if (value === undefined) return NONE;
  return fixed(value, Math.abs(value) >= 100 ? 0 : 1);
}

/** Four significant digits, exponent form outside 1e-3..1e5. @param {number | undefined} value */
export function figure(value) {
  if (value === undefined) return NONE;
  if (!Number.isFinite(value)) return fixed(value, 0);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return exponent(value);
  // Of what it rounds to: 0.99999 is 1.000, with no digit more than 1 has.
  const digits = Math.max(0, 3 - Math.floor(Math.log10(Number(size.toPrecision(4)))));
  return fixed(value, Math.min(digits, 6));
}

/** @param {number} value */
function exponent(value) {
  const [mantissa = "", power = ""] = Math.abs(value).toExponential(2).split("e");
  return `${value < 0 ? MINUS : ""}${mantissa}e${power.replace("-", MINUS).replace("+", "")}`;
}

/** A round value beside an axis, no digit more than it has. @param {number} value */
export function tickLabel(value) {
  const size = Math.abs(value);
  const round = Number(value.toPrecision(6));
  if (size === 0 || (size >= 1e-3 && size < 1e5)) return String(round).replace("-", MINUS);
  return round.toExponential().replace("+", "").replaceAll("-", MINUS);
}

/** 65536 as 2^16, other values as figures. @param {number | undefined} value */
export function powerOfTwo(value) {
  if (value === 1) return "1"; // 2 to the 0 says less
  if (value !== undefined && value > 0 && Number.isInteger(Math.log2(value))) return `2${superscript(Math.log2(value))}`;
  return figure(value);
}

/** @param {number} value whole */
export function superscript(value) {
  return [...String(value)].map((char) => "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[Number(char)] ?? "\u207b").join("");
}

const GROUPED = new Intl.NumberFormat("en-US");

/** 12,345 in every language: steps are read across screens. @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? NONE : GROUPED.format(value).replace("-", MINUS);
}

/** @param {number | undefined} value 0..1 */
export function percent(value) {
  if (value === undefined) return NONE;
  const scaled = value * 100;
  return `${fixed(scaled, scaled !== 0 && Math.abs(scaled) < 10 ? 2 : 1)} %`;
}

/** @param {number | null | undefined} bytes */
export function gibibytes(bytes) {
  return bytes === null || bytes === undefined ? NONE : (bytes / 2 ** 30).toFixed(bytes < 10 * 2 ** 30 ? 2 : 1);
}

/** @param {number} seconds */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60].map((part) => String(part).padStart(2, "0"));
  const days = Math.floor(whole / 86400);
  return days > 0 ? `${days}d ${String(Math.floor(whole / 3600) % 24).padStart(2, "0")}:${parts[1]}` : parts.join(":");
}

/** What a server says in clauses, as sentences; a parameter's name in front stays as it is written. @param {...string} clauses "" is left out */
export function sentences(...clauses) {
  const whole = clauses.filter((clause) => clause !== "").map((clause) => (/^\w+[._]\w/.test(clause) ? clause : clause.charAt(0).toUpperCase() + clause.slice(1)));
  return whole.map((clause) => (/[.!?\u3002\uff01\uff1f]$/.test(clause) ? clause : `${clause}.`)).join(" ");
}

/** Local wall-clock time; with the date when it is not today's. @param {number} ms @param {number} now */
export function clock(ms, now) {
  const at = new Date(ms);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === new Date(now).toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** The end of a layer's name says more than its start. @param {string} name @param {number} length */
export function tail(name, length) {
  return name.length <= length ? name : `\u2026${name.slice(name.length - length + 1)}`;
}

/** As much as there is room for, of what says the most at its start. @param {string} text @param {number} length */
export function start(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1).trimEnd()}\u2026`;
}

/** A value of a metric with its unit. @param {string} metric @param {number | undefined} value @param {string} bitsUnit */
export function metricText(metric, value, bitsUnit) {
  if (metric === "headroom") return `${bits(value)} ${bitsUnit}`;
  if (metric === "zeros" || metric === "underflow" || metric === "overflow") return percent(value);
  if (metric === "nonfinite") return count(value);
  return figure(value);
}
