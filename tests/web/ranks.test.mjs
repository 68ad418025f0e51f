import assert from "node:assert/strict";
import test from "node:test";
import { rankNotes, withDisagreements } from "../../web/data/ranks.js";

test("a run whose ranks agree has no notes", () => {
  assert.deepEqual(rankNotes({}), []);
  assert.deepEqual(rankNotes({ world: 4, missing_ranks: [], ranks_disagree: [] }), []);
});

test("one note for each kind, about the newest, the worst first", () => {
  const notes = rankNotes({
    world: 12,
    missing_ranks: [1, 2, 3, 4, 5, 6, 7, 8, 9],
    ranks_disagree: [
      { kind: "layer_apart", step: 0, detail: { layer: "0", name: "0@rank1" } },
      { kind: "norm_mismatch", step: 3, detail: { ours: 1.23456, framework: "Infinity" } },
      { kind: "replicas_differ", step: 4, detail: { kind: "weight", layer: "a", layers: 2, ranks: "0, 2" } },
      { kind: "replicas_differ", step: 9, detail: { kind: "weight", layer: "b", layers: 1, ranks: "0, 3" } },
    ],
  });
  assert.deepEqual(notes.map(({ key, severity }) => [key, severity]), [
    ["ranks.replicas_differ", "critical"],
    ["ranks.norm_mismatch", "warning"],
    ["ranks.missing", "warning"],
    ["ranks.layer_apart", "info"],
  ]);
  assert.deepEqual(notes[0]?.figures, { step: "9", layer: "\u2068b\u2069", layers: "1", ranks: "0, 3" });
  assert.deepEqual(notes[1]?.figures, { step: "3", ours: "1.235", framework: "Infinity" });
  assert.deepEqual(notes[2]?.figures, { ranks: "1, 2, 3, 4, 5, 6, 7, 8, ...", world: "12" });
});

test("what ranks do not agree on is held up to a limit", () => {
  const told = [...Array(40).keys()].map((step) => ({ kind: "replicas_differ", step, detail: {} }));
  const held = withDisagreements(withDisagreements(undefined, told), told);
  assert.equal(held.length, 64);
  assert.equal(held.at(-1), told.at(-1));
});
