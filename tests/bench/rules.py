"""From a block to its verdict: all rules over 8 ranks of 300 layers and two kinds on one core, in pairs.

Each block is judged by two engines: at a glance, as the server does, and step by step, which is what the first is
held against in the tests. Operands have a delayed scale, so limits, trends and scales are judged as well; every rank
sends five series. At 20 steps a second there are 160 steps of ranks a second. "Without a format" is the shape that the
bench of ingest sends: two kinds, no operand, no series.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from floatscope import wire
from floatscope_server.alerts.book import Book
from floatscope_server.observation import Observation
from floatscope_server.rules import RuleParameters, RunWindow
from tests.bench.spread import spread
from tests.server.alerts.conftest import Build

_LAYERS, _RANKS, _STEPS, _WARM_UP = 300, 8, 480, 60
_STEPS_PER_S = 20 * _RANKS
_KINDS = ("act", "grad")


def main() -> None:
    for formats in (True, False):
        for steps in (1, 5, 10):
            _pair(steps, formats=formats)


class _Engine:
    def __init__(self, *, glance: bool) -> None:
        self.window, self.book = RunWindow(RuleParameters()), Book()
        self._glance = glance
        self.walls: list[float] = []
        self.cpu: list[float] = []

    def take(self, observation: Observation, *, counts: bool) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        for finding in self.window.judge(observation, (lambda: self.book.kinds) if self._glance else None):
            self.book.apply(finding)
        if counts:
            self.walls.append(1000 * (time.perf_counter() - began))
            self.cpu.append(1000 * (time.process_time() - cpu))


def _pair(steps: int, *, formats: bool) -> None:
    glance, by_step = _Engine(glance=True), _Engine(glance=False)
    for observation in _observations(steps, formats=formats):
        counts = observation.body.first_step >= _WARM_UP
        glance.take(observation, counts=counts)
        by_step.take(observation, counts=counts)
    print(f"{steps} step{'s' * (steps > 1)} a block, {'five series' if formats else 'without a format'}:")
    for name, engine in (("at a glance", glance), ("step by step", by_step)):
        each = [milliseconds / steps for milliseconds in engine.cpu]
        rate = 1e9 * float(np.mean(each)) / 1e3 / (2 * 8 * _LAYERS)
        print(f"  {name}: CPU {spread(each, 'ms')} a step, {100 * np.mean(each) / 1000 * _STEPS_PER_S:.1f} % of a core")
        print(f"    block to verdict p50 {np.median(engine.walls):.2f}, p99 {_p99(engine.walls)} ms of wall time,")
        print(f"    p99 {_p99(engine.cpu)} ms of CPU time; {rate:.0f} CPU s for 1e9 samples of eight statistics")


def _p99(values: list[float]) -> str:
    return f"{np.percentile(values, 99):.2f}"


def _observations(steps: int, *, formats: bool) -> Iterator[Observation]:
    build, numbers = Build(), np.random.default_rng(0)
    operands = [
        wire.Operand(kind="act", format="e4m3fn", role="cast", scaling="delayed"),
        wire.Operand(kind="grad", format="bf16"),
    ]
    layers = build.layers(*(f"blocks.{i}" for i in range(_LAYERS)), operands=operands if formats else ())
    for number, first in enumerate(range(0, _STEPS, steps), 1):
        for rank in range(_RANKS):
            records = {
                step: {
                    "loss": 2 + 0.1 * numbers.random(),
                    "grad_norm": 1 + numbers.random(),
                    "lr": 1e-4,
                    "step_time_s": 0.05,
                    "clip_coef": 1.0,
                }
                for step in range(first, first + steps)
            }
            summaries = [
                build.summary(kind, first, _LAYERS, steps=steps, amax=(0.5 + numbers.random((steps, _LAYERS))).tolist())
                for kind in _KINDS
            ]
            body = build.body(*summaries, records=records if formats else {})
            yield build.observation(body, layers=layers, rank=rank, world=_RANKS, seq=number)
