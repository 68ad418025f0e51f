"""From a block to its verdict: all rules over 8 ranks of 300 layers and two kinds, one step a block, on one core.

Operands have a delayed scale, so limits, trends and scales are judged as well; every rank sends five series. At 20
steps a second there are 160 such blocks a second.
"""

from __future__ import annotations

import time

import numpy as np

from floatscope import wire
from floatscope_server.alerts.book import Book
from floatscope_server.rules import RuleParameters, RunWindow
from tests.bench.spread import spread
from tests.server.alerts.conftest import Build

_LAYERS, _RANKS, _STEPS, _WARM_UP = 300, 8, 400, 60
_BLOCKS_PER_S = 20 * _RANKS


def main() -> None:
    build, numbers = Build(), np.random.default_rng(0)
    cast = wire.Operand(kind="act", format="e4m3fn", role="cast", scaling="delayed")
    names = [f"blocks.{i}" for i in range(_LAYERS)]
    layers = build.layers(*names, operands=[cast, wire.Operand(kind="grad", format="bf16")])
    window, book = RunWindow(RuleParameters()), Book()
    walls, used = [], 0.0
    for step in range(_STEPS):
        for rank in range(_RANKS):
            body = build.body(
                build.summary("act", step, _LAYERS, amax=numbers.random(_LAYERS).tolist()),
                build.summary("grad", step, _LAYERS, amax=numbers.random(_LAYERS).tolist()),
                records={
                    step: {
                        "loss": 2 + 0.1 * numbers.random(),
                        "grad_norm": 1 + numbers.random(),
                        "lr": 1e-4,
                        "step_time_s": 0.05,
                        "clip_coef": 1.0,
                    }
                },
            )
            observation = build.observation(body, layers=layers, rank=rank, world=_RANKS, seq=step + 1)
            began, cpu = time.perf_counter(), time.process_time()
            for finding in window.judge(observation, lambda: book.kinds):
                book.apply(finding)
            if step >= _WARM_UP:
                walls.append(1000 * (time.perf_counter() - began))
                used += time.process_time() - cpu
    share = used / len(walls) * _BLOCKS_PER_S
    print(f"a block: {spread(walls, 'ms')}, p99 {np.percentile(walls, 99):.2f} ms")
    print(f"20 steps a second of {_RANKS} ranks: {100 * share:.0f} % of a core")
