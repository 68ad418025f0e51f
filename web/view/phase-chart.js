/** Phases of a step on top of each other, over the steps. */

import { css, palettes } from "../data/colour.js";
import { RIGHT, gutterFor, xOf } from "../data/geometry.js";
import { count, tickLabel } from "../data/text.js";
import { linearTicks, stepTicks } from "../data/ticks.js";
import { addCanvas, inkOf, line, onResize, prepare } from "./canvas.js";

/** @typedef {{ phases: readonly import("../data/series.js").Series[], range: import("../data/geometry.js").Range, theme: import("../data/colour.js").Theme, width: number, mark: number | null, height: number }} PhaseData */

const TOP = 8;
const AXIS = 20;

/** Colour of a phase, evenly along the page's scale. @param {import("../data/colour.js").Theme} theme @param {number} place @param {number} of */
export function phaseColour(theme, place, of) {
  const ramp = palettes[theme].safe;
  return css(ramp[Math.round((0.25 + (0.7 * place) / Math.max(1, of - 1)) * (ramp.length - 1))] ?? 0);
}

/** @param {HTMLElement} element @returns {import("./dom.js").Island} */
export function createPhases(element) {
  const canvas = addCanvas(element);
  /** @type {PhaseData | null} */
  let data = null;
  const stop = onResize(element, () => draw());

  function draw() {
    if (!data) return;
    const { phases, range, theme, width, mark, height } = data;
    const context = prepare(canvas, element.clientWidth, height);
    const ink = inkOf(theme);
    const [gutter, whole, bottom] = [gutterFor(width), element.clientWidth, height - AXIS];
    /** @type {Map<number, { cell: number, values: number[] }>} */
    const columns = new Map();
    phases.forEach(({ steps, values, cell }, place) =>
      steps.forEach((step, i) => {
        const column = columns.get(step) ?? { cell, values: phases.map(() => 0) };
        const value = values[i] ?? NaN;
        column.values[place] = Number.isFinite(value) ? Math.max(0, value) : 0;
        columns.set(step, column);
      }),
    );
    const top = [...columns.values()].reduce((most, { values }) => Math.max(most, values.reduce((sum, value) => sum + value, 0)), 0) * 1.05 || 1;
    const y = (/** @type {number} */ value) => bottom - (value / top) * (bottom - TOP);
    context.fillStyle = ink.muted;
    context.strokeStyle = ink.graticule;
    context.textAlign = "right";
    for (const tick of linearTicks(0, top, 4)) {
      line(context, gutter, Math.round(y(tick)) + 0.5, whole - RIGHT, Math.round(y(tick)) + 0.5);
      context.fillText(`${tickLabel(tick)} s`, gutter - 6, y(tick));
    }
    context.textAlign = "center";
    for (const step of stepTicks(range.from, range.to, (whole - gutter) / 110)) context.fillText(count(step), Math.min(whole - 24, xOf(step, range, gutter, whole)), height - 8);
    context.save();
    context.beginPath();
    context.rect(gutter, 0, whole - RIGHT - gutter, bottom);
    context.clip();
    for (const [step, { cell, values }] of columns) {
      const [left, right] = [Math.floor(xOf(step, range, gutter, whole)), Math.ceil(xOf(step + cell, range, gutter, whole))];
      let below = 0;
      values.forEach((value, place) => {
        context.fillStyle = phaseColour(theme, place, phases.length);
        context.fillRect(left, y(below + value), Math.max(1, right - left), y(below) - y(below + value));
        below += value;
      });
    }
    context.restore();
    context.strokeStyle = ink.text;
    if (mark !== null && mark >= range.from && mark <= range.to) line(context, xOf(mark + 0.5, range, gutter, whole), TOP, xOf(mark + 0.5, range, gutter, whole), bottom);
  }

  return {
    update(next) {
      data = next;
      draw();
    },
    destroy: stop,
  };
}
