/** What every canvas of the page shares: size in device pixels, the theme's colours, crisp lines, type. */

/** @typedef {Record<"bg" | "panel" | "text" | "muted" | "line" | "graticule" | "trace" | "critical" | "warning" | "info", string>} Ink */

const NAMES = /** @type {const} */ (["bg", "panel", "text", "muted", "line", "graticule", "trace", "critical", "warning", "info"]);

export const MONO = '11px ui-monospace, "SF Mono", "Cascadia Mono", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

/** @type {Map<string, Ink>} */
const inks = new Map();

/** The colours of the style sheet, for a canvas. @param {string} theme @returns {Ink} */
export function inkOf(theme) {
  const held = inks.get(theme);
  if (held) return held;
  const style = getComputedStyle(document.documentElement);
  const ink = /** @type {Ink} */ (Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])));
  inks.set(theme, ink);
  return ink;
}

/** @param {HTMLElement} parent @param {string} [className] */
export function addCanvas(parent, className = "") {
  const canvas = document.createElement("canvas");
  canvas.className = className;
  canvas.setAttribute("aria-hidden", "true");
  parent.append(canvas);
  return canvas;
}

/**
 * A cleared context in CSS pixels.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 */
export function prepare(canvas, width, height) {
  const density = devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * density));
  const h = Math.max(1, Math.round(height * density));
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = MONO;
  context.textBaseline = "middle";
  return context;
}

/** Redraw when the element's width changes. @param {HTMLElement} element @param {() => void} draw @returns {() => void} undo */
export function onResize(element, draw) {
  let width = element.clientWidth;
  const observer = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  observer.observe(element);
  return () => observer.disconnect();
}

/** @param {CanvasRenderingContext2D} context @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
export function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}
