import assert from "node:assert/strict";
import test from "node:test";

import { fileName } from "../../web/view/png.js";

test("a picture has a name that every system takes", () => {
  assert.equal(fileName("../a b", "Loss: 50 %"), "floatscope-a-b-Loss-50");
  assert.equal(fileName("运行 1", "损失"), "floatscope-运行-1-损失");
  assert.equal(fileName("", "x".repeat(300)).length, 120);
});
