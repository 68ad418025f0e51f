/** A picture of what a section has drawn, canvases and plotly's charts alike, with what it shows written above it. */

import { count } from "../data/text.js";
import { MONO, inkOf, line } from "./canvas.js";
import { h } from "./dom.js";

/** @typedef {import("../state.js").State} State */
/** @typedef {{ text: string, color: string, dash: number[] }} Key a line of the picture, and what it stands for */
/** @typedef {{ run: string, title: string, detail: string, key: readonly Key[] }} Caption */
/** @typedef {{ toImage: (element: HTMLElement, options: unknown) => Promise<string> }} Plotly */
/** @typedef {{ box: DOMRect, image: CanvasImageSource }} Part */

/** Pixels of the picture to one of CSS: sharp in a document that enlarges it. */
const DENSITY = 2;
const EDGE = 14;
const HEAD = 46;
const KEY = 17;
const SAMPLE = 36;
const KEPT_MS = 60_000;

/**
 * A button that saves the pictures of the section it is in.
 * @param {State} state @param {import("../data/geometry.js").Range | null} range steps that are drawn
 * @param {string} title @param {string} scale what the values are, and how they are scaled
 * @param {import("../data/words.js").Translate} t
 * @param {{ subject?: string, key?: readonly Key[] }} [more] what the picture is of instead of the run that is open, and its lines
 */
export function pngButton(state, range, title, scale, t, { subject = state.route.run, key = [] } = {}) {
  const steps = range === null ? [] : [t("step_range", { from: count(range.from), to: count(range.to) })];
  const save = (/** @type {Event} */ event) => {
    const button = /** @type {HTMLButtonElement} */ (event.currentTarget);
    const section = /** @type {HTMLElement} */ (button.closest("section"));
    button.disabled = true;
    void picture(section, { run: subject, title, detail: [...steps, scale].join(" \u00b7 "), key }, state.theme)
      .then((blob) => download(blob, `${fileName(subject, title)}.png`))
      .finally(() => (button.disabled = false));
  };
  return h("button", { type: "button", class: "plain png", "aria-label": t("png.label", { title }), title: t("png.label", { title }), onclick: save }, "PNG");
}

/** What every system takes as a name of a file. @param {...string} parts */
export function fileName(...parts) {
  const safe = parts.map((part) => part.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, ""));
  return ["floatscope", ...safe.filter((part) => part !== "")].join("-").slice(0, 120);
}

/** @param {HTMLElement} section @param {Caption} caption @param {string} theme @returns {Promise<Blob>} */
async function picture(section, caption, theme) {
  const parts = await partsOf(section);
  const head = HEAD + caption.key.length * KEY;
  const left = Math.min(...parts.map(({ box }) => box.left));
  const top = Math.min(...parts.map(({ box }) => box.top));
  const right = Math.max(...parts.map(({ box }) => box.right));
  const bottom = Math.max(...parts.map(({ box }) => box.bottom));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round((right - left + 2 * EDGE) * DENSITY);
  canvas.height = Math.round((bottom - top + head + 2 * EDGE) * DENSITY);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const ink = inkOf(theme);
  context.scale(DENSITY, DENSITY);
  context.fillStyle = ink.bg;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.textBaseline = "alphabetic";
  const room = right - left;
  context.fillStyle = ink.text;
  context.font = MONO.replace("11px", "600 14px");
  context.fillText(`${caption.run} \u00b7 ${caption.title}`, EDGE, EDGE + 12, room);
  context.fillStyle = ink.muted;
  context.font = MONO;
  context.fillText(caption.detail, EDGE, EDGE + 30, room);
  caption.key.forEach(({ text, color, dash }, i) => {
    const y = EDGE + HEAD + i * KEY;
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.setLineDash(dash);
    line(context, EDGE, y, EDGE + SAMPLE, y);
    context.fillText(text, EDGE + SAMPLE + 8, y + 4, room - SAMPLE - 8);
  });
  // Cells are as sharp in the picture as they are on the screen.
  context.imageSmoothingEnabled = false;
  for (const { box, image } of parts) context.drawImage(image, box.left - left + EDGE, box.top - top + EDGE + head, box.width, box.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the browser made no picture"))), "image/png"));
}

/** What is drawn in `section`, in the order in which it lies there. @param {HTMLElement} section @returns {Promise<Part[]>} */
async function partsOf(section) {
  /** @type {Part[]} */
  const parts = [];
  for (const element of section.querySelectorAll("canvas, .js-plotly-plot")) {
    const box = element.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) continue;
    if (element instanceof HTMLCanvasElement) parts.push({ box, image: element });
    else {
      const plotly = /** @type {{ Plotly: Plotly }} */ (/** @type {unknown} */ (window)).Plotly;
      const address = await plotly.toImage(/** @type {HTMLElement} */ (element), { format: "png", width: box.width, height: box.height, scale: DENSITY });
      parts.push({ box, image: await loaded(address) });
    }
  }
  return parts;
}

/** @param {string} address @returns {Promise<HTMLImageElement>} */
async function loaded(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The browser may read it only once it has asked where to put it.
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}
