"""Recorders on a compiled training: its own program, so compared with a second training that nobody watches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
from torch._dynamo.utils import counters

from floatscope._bench.method import Series, run_steps
from floatscope._bench.recorders import Recorder
from floatscope._bench.training import Training

__all__ = ["MODES", "Compilation", "compile_now", "compiled_in_turns", "forget"]

MODES = {"cuda": ("default", "reduce-overhead"), "cpu": ("default",)}
"""Of torch.compile, by device: CUDA graphs are what the second adds."""

_BLOCK = 12
_WARM = 6
"""Steps until nothing is compiled or captured any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What Dynamo did for one training. Functions that it compiled for an earlier one it does not compile again."""

    graph_breaks: int
    compilations: int
    """Frames compiled, repetitions included."""
    seconds: float
    """Until the first steps were done."""

    @classmethod
    def since(cls, begin: float) -> Compilation:
        """From Dynamo's counters, which were cleared at ``begin`` (of ``time.perf_counter``)."""
        return cls(
            graph_breaks=sum(counters["graph_break"].values()),
            compilations=counters["frames"]["ok"],
            seconds=time.perf_counter() - begin,
        )


def compile_now(training: Training, recorder: Recorder) -> Compilation:
    """Take the first steps of ``training``, with ``recorder`` attached."""
    counters.clear()
    begin = time.perf_counter()
    run_steps(training, recorder, _WARM)
    return Compilation.since(begin)


def compiled_in_turns(base: Training, watched: Training, recorder: Recorder, pairs: int, seconds: float) -> Series:
    """Blocks of both trainings in turns; each step of ``watched`` against the median of the blocks around its own.

    Peak memory is not told: both trainings are there.
    """
    series = Series("steps")
    began = time.perf_counter()
    before = run_steps(base, Recorder(1), _BLOCK)
    while not series.added or (len(series.added) < pairs and time.perf_counter() - began < seconds):
        times = run_steps(watched, recorder, _BLOCK)
        after = run_steps(base, Recorder(1), _BLOCK)
        around = median(before + after)
        # The first step of a block waits for the host, which the device has caught up with.
        series.added += [ms - around for ms in times[1:]]
        series.base += before[1:]
        before = after
    series.steps = len(series.added)
    return series


def forget() -> None:
    """Free what was compiled."""
    torch._dynamo.reset()
