/** Pointer and keyboard on the heat map: point, drag to zoom, open a layer. */

/** @typedef {import("../state.js").Cursor} Cursor */
/**
 * @typedef {object} Target
 * @property {() => import("./heat-canvas.js").HeatData | null} data
 * @property {(x: number, y: number) => Cursor} cellAt
 * @property {(x: number) => boolean} inPlot
 * @property {() => boolean} twoFingers whether a touch belongs to a pair, which points at nothing
 * @property {(drag: { from: number, to: number } | null) => void} setDrag
 */

/** Fewer pixels are a click with an unsteady hand. */
const DRAG_PX = 6;

/** In a zoomed view a click may be the first half of the double click that leaves it. */
const DOUBLE_CLICK_MS = 260;

/** Turns of the wheel that follow each other so fast are one zoom. */
const WHEEL_MS = 90;

/** @param {HTMLElement} element @param {Target} target @returns {() => void} undo */
export function attachInput(element, { data, cellAt, inPlot, twoFingers, setDrag }) {
  /** @type {{ x: number, step: number } | null} */
  let pressed = null;
  /** @type {number | undefined} */
  let opening;
  /** Where the cursor was put since that drawing: the next key may come before another one. @type {{ of: import("./heat-canvas.js").HeatData, cursor: Cursor | null } | null} */
  let asked = null;

  const at = (/** @type {PointerEvent | MouseEvent} */ event) => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  /** What turns of the wheel have asked for since the last zoom. */
  const wheel = { factor: 1, centre: 0, timer: /** @type {number | undefined} */ (undefined) };

  const listeners = {
    /** A pinch on a touch pad is a wheel with the control key held. @param {WheelEvent} event */
    wheel(event) {
      if (!event.ctrlKey || !data()) return;
      event.preventDefault();
      const { x, y } = at(event);
      wheel.factor *= 2 ** (Math.max(-120, Math.min(120, event.deltaY)) / 120);
      wheel.centre = cellAt(x, y).step;
      clearTimeout(wheel.timer);
      wheel.timer = window.setTimeout(() => {
        zoom(wheel.centre, wheel.factor);
        wheel.factor = 1;
      }, WHEEL_MS);
    },
    /** @param {PointerEvent} event */
    pointerdown(event) {
      const { x, y } = at(event);
      if (event.button !== 0 || event.pointerType === "touch" || !inPlot(x)) return;
      pressed = { x, step: cellAt(x, y).step };
      element.setPointerCapture(event.pointerId);
    },
    /** @param {PointerEvent} event */
    pointermove(event) {
      const now = data();
      if (!now || (event.pointerType === "touch" && twoFingers())) return;
      const { x, y } = at(event);
      const cell = cellAt(x, y);
      if (pressed && Math.abs(x - pressed.x) >= DRAG_PX) setDrag({ from: pressed.step, to: cell.step });
      point(now, inPlot(x) || pressed ? cell : null);
    },
    /** @param {PointerEvent} event */
    pointerup(event) {
      const now = data();
      const { x, y } = at(event);
      const start = pressed;
      pressed = null;
      setDrag(null);
      if (!now) return;
      const cell = cellAt(x, y);
      if (event.pointerType === "touch") return twoFingers() ? undefined : point(now, cell);
      if (!start) return;
      if (Math.abs(x - start.x) < DRAG_PX) {
        clearTimeout(opening);
        const zoomed = now.route.from !== null || now.route.to !== null;
        if (zoomed) opening = window.setTimeout(() => open(cell), DOUBLE_CLICK_MS);
        else open(cell);
      }
      else now.act.navigate({ from: Math.min(start.step, cell.step), to: Math.max(start.step, cell.step) });
    },
    pointercancel: abandon,
    /** @param {PointerEvent} event */
    pointerleave(event) {
      if (event.pointerType !== "touch" && document.activeElement !== element) point(data(), null);
    },
    dblclick() {
      clearTimeout(opening);
      data()?.act.navigate({ from: null, to: null });
    },
    blur: () => point(data(), null),
    /** @param {KeyboardEvent} event */
    keydown(event) {
      const now = data();
      if (!now || event.ctrlKey || event.metaKey || event.altKey) return;
      const { grid, range, act } = now;
      const cursor = asked?.of === now ? asked.cursor : now.cursor;
      const rows = grid.meta.layers.length;
      const end = Math.min(range.to, Math.max(range.from, grid.last));
      const from = cursor && cursor.row >= 0 ? cursor : { step: end, row: 0 };
      const move = (/** @type {number} */ steps, /** @type {number} */ down) =>
        point(now, {
          step: Math.min(end, Math.max(range.from, from.step + steps)),
          row: Math.min(rows - 1, Math.max(0, from.row + down)),
        });
      const stride = event.shiftKey ? 10 : 1;
      /** @type {Record<string, () => void>} */
      const keys = {
        ArrowLeft: () => move(-grid.cell * stride, 0),
        ArrowRight: () => move(grid.cell * stride, 0),
        ArrowUp: () => move(0, -stride),
        ArrowDown: () => move(0, stride),
        Home: () => point(now, { step: range.from, row: from.row }),
        End: () => point(now, { step: end, row: from.row }),
        Enter: () => open(from),
        "+": () => zoom(from.step, 0.5),
        "=": () => zoom(from.step, 0.5),
        "-": () => zoom(from.step, 2),
        0: () => act.navigate({ from: null, to: null }),
        Escape: () => (pressed ? abandon() : point(now, null)),
      };
      const action = keys[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    },
  };

  /** A drag that has come to nothing. */
  function abandon() {
    pressed = null;
    setDrag(null);
  }

  /** @param {import("./heat-canvas.js").HeatData | null} now @param {Cursor | null} cursor */
  function point(now, cursor) {
    if (!now) return;
    asked = { of: now, cursor };
    now.act.point(cursor);
  }

  /** @param {Cursor} cell */
  function open(cell) {
    const now = data();
    const layer = now?.grid.meta.layers[cell.row];
    if (now && layer) now.open(layer, cell.step);
  }

  /** @param {number} centre @param {number} factor */
  function zoom(centre, factor) {
    const now = data();
    if (!now) return;
    const { range, act } = now;
    const half = Math.max(4, ((range.to - range.from) * factor) / 2);
    const from = Math.max(0, Math.round(centre - half));
    const to = Math.round(centre + half);
    act.navigate(to >= now.grid.last && from === 0 ? { from: null, to: null } : { from, to });
  }

  for (const [name, listener] of Object.entries(listeners)) element.addEventListener(name, /** @type {EventListener} */ (listener), { passive: false });
  return () => {
    for (const [name, listener] of Object.entries(listeners)) element.removeEventListener(name, /** @type {EventListener} */ (listener));
  };
}
