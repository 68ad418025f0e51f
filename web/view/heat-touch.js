/** Two fingers on the heat map: they widen, narrow and move the range of steps. One finger scrolls the page. */

import { gutterFor, pinched } from "../data/geometry.js";

/** @typedef {import("../data/geometry.js").Range} Range */
/**
 * @param {HTMLElement} element @param {() => import("./heat-canvas.js").HeatData | null} data
 * @param {(range: Range | null) => void} preview the range under the fingers; null: that of the page again
 * @returns {{ fingers: () => boolean, stop: () => void }} fingers: whether the last touch was one of two
 */
export function attachTouch(element, data, preview) {
  /** @type {{ places: [number, number], range: Range, now: Range } | null} */
  let pinch = null;
  let two = false;

  /** @param {TouchEvent} event @returns {[number, number] | null} */
  const places = ({ targetTouches }) => {
    const left = element.getBoundingClientRect().left;
    const [one, other] = [...targetTouches].map((touch) => touch.clientX - left).sort((a, b) => a - b);
    return one === undefined || other === undefined || targetTouches.length > 2 ? null : [one, other];
  };

  const listeners = {
    /** @param {TouchEvent} event */
    touchstart(event) {
      if (event.targetTouches.length === 1) two = false;
      const [range, at] = [data()?.range, places(event)];
      if (!range || !at) return;
      event.preventDefault();
      two = true;
      pinch = { places: at, range, now: range };
    },
    /** @param {TouchEvent} event */
    touchmove(event) {
      const [now, at] = [data(), places(event)];
      if (!pinch || !now || !at) return;
      event.preventDefault(); // else the browser would scroll, and take the fingers away
      pinch.now = pinched(pinch.places, at, pinch.range, gutterFor(now.width), element.clientWidth, now.grid.last);
      preview(pinch.now);
    },
    touchend() {
      const done = pinch;
      pinch = null;
      if (!done) return;
      const now = data();
      if (now && (done.now.from !== done.range.from || done.now.to !== done.range.to)) {
        const whole = done.now.from === 0 && done.now.to >= now.grid.last;
        now.act.navigate(whole ? { from: null, to: null } : done.now);
      }
      preview(null);
    },
    touchcancel() {
      pinch = null;
      preview(null);
    },
  };

  for (const [name, listener] of Object.entries(listeners)) element.addEventListener(name, /** @type {EventListener} */ (listener), { passive: false });
  return {
    fingers: () => two,
    stop() {
      for (const [name, listener] of Object.entries(listeners)) element.removeEventListener(name, /** @type {EventListener} */ (listener));
    },
  };
}
