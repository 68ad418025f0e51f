import assert from "node:assert/strict";
import test from "node:test";

import { attachInput } from "../../web/view/heat-input.js";

/** A heat map of 100 steps in 100 pixels. */
function map() {
  /** @type {Record<string, (event: any) => void>} */
  const listeners = {};
  /** @type {unknown[]} */
  const went = [];
  /** @type {({ from: number, to: number } | null)[]} */
  const drags = [];
  const element = /** @type {any} */ ({
    getBoundingClientRect: () => ({ left: 0, top: 0 }),
    setPointerCapture() {},
    addEventListener: (/** @type {string} */ name, /** @type {(event: any) => void} */ listener) => (listeners[name] = listener),
    removeEventListener() {},
  });
  const act = { point() {}, navigate: (/** @type {unknown} */ change) => went.push(change) };
  const data = /** @type {any} */ ({ act, route: { from: null, to: null }, range: { from: 0, to: 99 }, cursor: null, grid: { cell: 1, last: 99, meta: { layers: [] } } });
  attachInput(element, { data: () => data, cellAt: (x) => ({ step: x, row: 0 }), inPlot: () => true, twoFingers: () => false, setDrag: (drag) => drags.push(drag) });
  const pointer = (/** @type {string} */ kind, /** @type {number} */ x) => listeners[kind]?.({ clientX: x, clientY: 0, button: 0, pointerType: "mouse", pointerId: 1 });
  const key = (/** @type {string} */ name) => listeners["keydown"]?.({ key: name, preventDefault() {} });
  return { pointer, key, went, drags };
}

test("a drag picks what it went over", () => {
  const { pointer, went } = map();
  pointer("pointerdown", 60);
  pointer("pointermove", 20);
  pointer("pointerup", 20);
  assert.deepEqual(went, [{ from: 20, to: 60 }]);
});

test("a drag that the system takes away, or Escape, picks nothing", () => {
  for (const end of ["system", "Escape"]) {
    const { pointer, key, went, drags } = map();
    pointer("pointerdown", 60);
    pointer("pointermove", 20);
    if (end === "system") pointer("pointercancel", 0);
    else key("Escape");
    pointer("pointermove", 80);
    pointer("pointerup", 80);
    assert.deepEqual([went, drags], [[], [{ from: 60, to: 20 }, null, null]], end);
  }
});
