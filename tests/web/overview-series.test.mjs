import assert from "node:assert/strict";
import test from "node:test";

import { SCALARS, throughputOf } from "../../web/data/overview-series.js";
import { appendPoints, seriesFrom } from "../../web/data/series.js";

/** @param {string} name @param {number[]} steps @param {number[]} values @param {number} [cell] @param {number[]} [min] @param {number[]} [max] */
const series = (name, steps, values, cell = 1, min = values, max = values) => seriesFrom({ name, cell, steps, values, min, max });
const STEPS = Array.from({ length: 40 }, (_, i) => i);
const named = (/** @type {ReturnType<typeof series>[]} */ ...all) => new Map(all.map((one) => [one.name, one]));

test("what a training logs as its pace comes first, then what it counts, then its steps", () => {
  const times = series("step_time_s", STEPS, STEPS.map(() => 0.5));
  const tokens = series("tokens", STEPS, STEPS.map((step) => 1000 * (step + 1)));
  const logged = series("tokens_per_second", STEPS, STEPS.map(() => 1900));
  assert.equal(throughputOf(named(), 0), null);
  assert.equal(throughputOf(named(tokens), 0), null, "without times nothing tells how fast");
  assert.equal(throughputOf(named(times, tokens, logged), 0)?.series, logged);
  const counted = throughputOf(named(times, tokens), 0);
  assert.equal(counted?.unit, "tokens");
  assert.deepEqual(counted?.series.steps, STEPS.slice(1), "the first count has none before it");
  assert(counted?.series.values.every((value) => Math.abs(value - 2000) < 1e-9));
  const alone = throughputOf(named(series("step_time_s", STEPS, STEPS.map(() => 0.25))), 0);
  assert.deepEqual([alone?.unit, alone?.series.values[0]], ["steps", 4]);
});

test("steps in a second are steps by their time, and one slow step stays visible", () => {
  const times = series("step_time_s", [0, 100], [0.5, 1], 100, [0.4, 0.4], [0.6, 60]);
  const made = throughputOf(named(times), 0)?.series;
  assert.deepEqual([made?.values, made?.min, made?.max], [[2, 1], [1 / 0.6, 1 / 60], [2.5, 2.5]]);
});

test("a counter that is logged now and then is steady where the training is", () => {
  // Every 30 steps, in cells of 64: two or three of its points in each.
  const cells = Array.from({ length: 60 }, (_, i) => i * 64);
  const last = cells.map((first) => Math.floor((first + 63) / 30) * 30);
  const tokens = series("tokens", cells, last, 64, last, last);
  const made = throughputOf(named(tokens, series("step_time_s", cells, cells.map(() => 0.5), 64)), 0)?.series;
  for (const value of made?.values.slice(10) ?? []) assert(Math.abs(value - 2) < 0.15, String(value));
});

test("a counter that begins anew gives no negative pace", () => {
  const tokens = series("tokens", STEPS, STEPS.map((step) => 100 * ((step % 20) + 1)));
  const made = throughputOf(named(tokens, series("step_time_s", STEPS, STEPS.map(() => 1))), 0)?.series;
  assert(made?.values.every((value) => value > 99));
  assert.equal(made?.steps.includes(20), false);
});

test("the same object stands for the same data, and follows them", () => {
  const times = series("step_time_s", [0, 1], [1, 1]);
  const first = throughputOf(named(times), 1);
  assert.equal(throughputOf(named(times), 1)?.series, first?.series);
  appendPoints(times, [[2, 0.5]]);
  const next = throughputOf(named(times), 2);
  assert.equal(next?.series, first?.series);
  assert.deepEqual(next?.series.values, [1, 1, 2]);
});

test("no series is asked for twice", () => {
  assert.equal(new Set(SCALARS).size, SCALARS.length);
});
