/** The pixels of the heat map: cells, hatching over the limit (the other way below a band), crosses on what is not finite. */

import { MISSING, NONFINITE, NORMAL, OVER, UNDER } from "./scale.js";

/**
 * Device pixels of `width` x `height` from cells of lines x columns. `left` and `right` are the pixel columns (fractions
 * allowed) at which the first cell begins and the last one ends: a zoomed view draws only a part.
 * @param {{ colours: Uint32Array, classes: Uint8Array }} cells @param {number} lines @param {number} columns
 * @param {Uint32Array} pixels [height, width], overwritten
 * @param {{ width: number, height: number, left: number, right: number, density: number }} place
 * @param {import("./colour.js").Palette} palette
 */
export function drawCells(cells, lines, columns, pixels, place, palette) {
  const { width, height, left, right, density } = place;
  const columnAt = new Int32Array(width);
  const acrossAt = new Float32Array(width);
  const cellWidth = (right - left) / columns;
  const cellHeight = height / lines;
  for (let x = 0; x < width; x++) {
    const at = (x + 0.5 - left) / cellWidth;
    columnAt[x] = at >= 0 && at < columns ? Math.floor(at) : -1;
    acrossAt[x] = at - Math.floor(at);
  }
  const pitch = Math.round(5 * density);
  const stroke = Math.max(1, Math.round(1.4 * density));
  const gap = cellHeight >= 6 * density ? Math.round(density) : 0;
  for (let y = 0; y < height; y++) {
    const line = Math.min(lines - 1, Math.floor((y + 0.5) / cellHeight));
    const inside = y + 0.5 - line * cellHeight;
    const start = y * width;
    if (gap > 0 && inside > cellHeight - gap) {
      pixels.fill(palette.missing, start, start + width);
      continue;
    }
    const down = inside / cellHeight;
    for (let x = 0; x < width; x++) {
      const column = /** @type {number} */ (columnAt[x]);
      if (column < 0) {
        pixels[start + x] = palette.missing;
        continue;
      }
      const cell = line * columns + column;
      const kind = cells.classes[cell];
      let colour = /** @type {number} */ (cells.colours[cell]);
      if (kind !== NORMAL) {
        if (kind === OVER && (x + y) % pitch < stroke) colour = palette.hatch;
        else if (kind === UNDER && (x + height - y) % pitch < stroke) colour = palette.hatch;
        else if (kind === NONFINITE && crossed(x, y, /** @type {number} */ (acrossAt[x]), down, cellWidth, cellHeight, density)) colour = palette.cross;
        else if (kind === MISSING) colour = palette.missing;
      }
      pixels[start + x] = colour;
    }
  }
}

/**
 * A cross in a cell that has room for one, a fine check in one that has not.
 * @param {number} x @param {number} y @param {number} across @param {number} down @param {number} cellWidth
 * @param {number} cellHeight @param {number} density
 */
function crossed(x, y, across, down, cellWidth, cellHeight, density) {
  const size = Math.min(cellWidth, cellHeight);
  if (size < 6 * density) return (Math.floor(x / density) + Math.floor(y / density)) % 3 === 0;
  const dx = (across - 0.5) * cellWidth;
  const dy = (down - 0.5) * cellHeight;
  if (Math.abs(dx) > size * 0.3 || Math.abs(dy) > size * 0.3) return false;
  return Math.abs(Math.abs(dx) - Math.abs(dy)) < 0.7 * density;
}
