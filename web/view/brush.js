/** Dragging over a chart on a canvas picks a range of steps for all of the page, as on the heat map. */

/** @typedef {import("../data/geometry.js").Range} Range */

/** Fewer pixels are a click with an unsteady hand. */
const DRAG_PX = 6;

/**
 * @param {HTMLElement} element whose canvas lies at its left edge
 * @param {() => { range: Range, left: number, right: number, zoom: (range: { from: number | null, to: number | null }) => void } | null} place the pixels that the range spans
 * @returns {() => void} undo
 */
export function attachBrush(element, place) {
  const band = document.createElement("div");
  band.className = "brushed";
  band.hidden = true;
  element.classList.add("brushable");
  element.append(band);
  /** @type {number | null} */
  let pressed = null;

  const at = (/** @type {PointerEvent} */ event) => {
    const { left = 0, right = 0 } = place() ?? {};
    return Math.min(right, Math.max(left, event.clientX - element.getBoundingClientRect().left));
  };

  const listeners = {
    /** @param {PointerEvent} event A finger scrolls the page. */
    pointerdown(event) {
      if (event.button !== 0 || event.pointerType === "touch") return;
      pressed = at(event);
      element.setPointerCapture(event.pointerId);
    },
    /** @param {PointerEvent} event */
    pointermove(event) {
      if (pressed === null) return;
      const here = at(event);
      band.hidden = Math.abs(here - pressed) < DRAG_PX;
      band.style.left = `${Math.min(here, pressed)}px`;
      band.style.width = `${Math.abs(here - pressed)}px`;
    },
    /** @param {PointerEvent} event */
    pointerup(event) {
      const [start, now, end] = [pressed, place(), at(event)];
      pressed = null;
      band.hidden = true;
      if (start === null || now === null || Math.abs(end - start) < DRAG_PX) return;
      const { range, left, right, zoom } = now;
      const step = (/** @type {number} */ x) => Math.min(range.to, Math.floor(range.from + ((x - left) / (right - left)) * (range.to + 1 - range.from)));
      zoom({ from: step(Math.min(start, end)), to: step(Math.max(start, end)) });
    },
    pointercancel() {
      pressed = null;
      band.hidden = true;
    },
    dblclick: () => place()?.zoom({ from: null, to: null }),
  };

  for (const [name, listener] of Object.entries(listeners)) element.addEventListener(name, /** @type {EventListener} */ (listener));
  return () => {
    for (const [name, listener] of Object.entries(listeners)) element.removeEventListener(name, /** @type {EventListener} */ (listener));
  };
}
