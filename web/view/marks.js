/** Small signs: each state has a shape of its own beside its colour. */

import { formats } from "../data/formats.js";
import { h } from "./dom.js";

/** @typedef {import("../data/health.js").Severity} Severity */

const SHAPES = {
  critical: "M6 0.8 11.6 11.2H0.4Z",
  warning: "M6 0.6 11.4 6 6 11.4 0.6 6Z",
  info: "M6 1.2a4.8 4.8 0 1 1 0 9.6a4.8 4.8 0 1 1 0-9.6Z",
};

/** @param {Severity} severity @param {boolean} [hollow] acknowledged or resolved */
export function severityMark(severity, hollow = false) {
  return h(
    "svg",
    { class: `mark mark-${severity}${hollow ? " hollow" : ""}`, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" },
    h("path", { d: SHAPES[severity] }),
  );
}

/** A sheet with a corner cut: something was saved. */
export function checkpointMark() {
  return h("svg", { class: "mark mark-saved hollow", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, h("path", { d: "M2 1.200h5.600l2.600 2.600v7h-8.200Z" }));
}

/** The bits of a format, sign, exponent, mantissa: e5m2 is one tall, five filled, two hollow. @param {string} name */
export function bitField(name) {
  const format = formats.get(name);
  if (!format) return null;
  const mantissa = Math.min(format.mantissaBits, 10);
  const count = 1 + format.exponentBits + mantissa;
  const boxes = Array.from({ length: count }, (_, i) => {
    const part = i === 0 ? "sign" : i <= format.exponentBits ? "exponent" : "mantissa";
    return h("rect", { class: part, x: i * 4 + 0.5, y: i === 0 ? 0.5 : 2.5, width: 2.5, height: i === 0 ? 8 : 6 });
  });
  return h("svg", { class: "bitfield", viewBox: `0 0 ${count * 4} 9`, width: count * 4, height: 9, "aria-hidden": "true" }, ...boxes);
}

/** @param {string | null} name */
export function formatChip(name) {
  if (name === null) return "\u2014";
  return h("span", { class: "format" }, bitField(name), name);
}

/** In the place of a line that has no finite value. @param {number} width @param {number} height */
export function notFinite(width, height) {
  const size = 3;
  const centres = Array.from({ length: Math.floor((width - 36) / 12) }, (_, i) => 6 + i * 12);
  const crosses = centres.map((x) => `M${x - size} ${height / 2 - size}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}`);
  return h("span", { class: "notfinite" }, h("svg", { viewBox: `0 0 ${width - 36} ${height}`, width: width - 36, height, "aria-hidden": "true" }, h("path", { d: crosses.join("") })), "NaN");
}

/** A line of recent values; gaps where one was not finite. @param {readonly number[]} values @param {number} width @param {number} height */
export function sparkline(values, width, height) {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return h("span", { class: "muted" }, "\u2014");
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  let path = "";
  let pen = false;
  /** @type {import("./dom.js").VElement[]} */
  const holes = [];
  values.forEach((value, i) => {
    const x = ((i / (values.length - 1)) * (width - 2) + 1).toFixed(1);
    if (Number.isFinite(value)) {
      path += `${pen ? "L" : "M"}${x} ${(height - 2 - ((value - low) / span) * (height - 4)).toFixed(1)}`;
      pen = true;
    } else {
      holes.push(h("path", { class: "hole", d: `M${x} 1v${height - 2}` }));
      pen = false;
    }
  });
  return h("svg", { class: "spark", preserveAspectRatio: "none", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, ...holes, h("path", { class: "line", d: path }));
}
