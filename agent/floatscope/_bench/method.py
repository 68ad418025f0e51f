"""How an added time is measured: pairs of neighbouring steps, or blocks of steps that take turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median

import torch

from floatscope._bench.catalogue import RecorderSpec
from floatscope._bench.recorders import Recorder
from floatscope._bench.training import Training

__all__ = ["Series", "in_turns", "measure", "paired"]

_WARM = 4
"""Steps before any that count: an even number, so that the parity of the steps stays."""
_WARM_PERIOD = 10
"""The same before a whole period, of which any stretch has everything once."""
_BLOCK = 8
"""Most steps of a block of a recorder that does the same in each."""
_BASE_BLOCK = 12
"""Most steps of a block without the recorder."""
_BLOCKS = 6


@dataclass(slots=True)
class Series:
    """Times in ms. ``added`` has an entry for each of what ``form`` says: "pairs", "blocks" or "steps"."""

    form: str
    base: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    steps: int = 0
    """Steps that were timed with the recorder acting, or attached where it acts in some."""
    peak_bytes: int | None = None
    """Most device memory that tensors held; None where nobody counts that."""


def measure(training: Training, make: Callable[[int], Recorder], spec: RecorderSpec, pairs: int) -> Series:
    """In the form that fits ``spec``."""
    gc.collect()
    recorder = make(2 if spec.paired else 1)
    try:
        if spec.paired:
            return paired(training, recorder, pairs, spec.seconds)
        return in_turns(training, recorder, spec.period, spec.seconds)
    finally:
        recorder.close()


def paired(training: Training, recorder: Recorder, pairs: int, seconds: float) -> Series:
    """The recorder acts in every second step; each such step is compared with the mean of the steps around it.

    At most ``pairs`` of them, fewer if they would take longer than ``seconds``. If already the first step of the
    recorder does, that one is the result.
    """
    series = Series("pairs")
    run_steps(training, Recorder(1), 1)
    plain = run_steps(training, Recorder(1), 3)
    recorder.attach(training)
    try:
        (first,) = run_steps(training, recorder, 1)
        if first > 1e3 * seconds:
            series.base, series.added, series.steps = plain, [first - median(plain)], 1
            return series
        begin = time.perf_counter()
        run_steps(training, recorder, _WARM - 1)
        two_steps_s = (time.perf_counter() - begin) * 2 / (_WARM - 1)
        count = max(1, min(pairs, int(seconds / two_steps_s)))
        _reset_peak(training)
        times = run_steps(training, recorder, 2 * count + 2)
        series.peak_bytes = _peak(training)
    finally:
        recorder.detach()
    series.base = times[1::2]
    series.added = [times[i] - (times[i - 1] + times[i + 1]) / 2 for i in range(2, len(times) - 1, 2)]
    series.steps = len(series.added)
    return series


def in_turns(training: Training, recorder: Recorder, period: int, seconds: float) -> Series:
    """Blocks with the recorder, each compared with the blocks without it before and after.

    Each step counts, against the median of those around its block. Where what the recorder does repeats after
    ``period`` > 1 steps, a block has that many, and its mean counts, against the mean of those around it. At least one
    block, at most six or what ``seconds`` allow.
    """
    length = period if period > 1 else _BLOCK
    series = Series("blocks" if period > 1 else "steps")
    began, blocks = time.perf_counter(), 0
    before = _without(training, min(length, _BASE_BLOCK))
    while _another(blocks, time.perf_counter() - began, seconds):
        recorder.attach(training)
        try:
            warm = run_steps(training, recorder, min(length, _WARM_PERIOD) if period > 1 else 2)
            if period == 1:
                length = max(1, min(length, int(1e3 * seconds / 2 / warm[-1])))
            _reset_peak(training)
            times = run_steps(training, recorder, length)
            series.peak_bytes = _peak(training)
        finally:
            recorder.detach()
        after = _without(training, min(length, _BASE_BLOCK))
        if period > 1:
            series.added.append(fmean(times) - (fmean(before) + fmean(after)) / 2)
        else:
            around = median(before + after)
            series.added += [ms - around for ms in times]
        series.base += before
        series.steps += length
        before, blocks = after, blocks + 1
    series.base += before
    return series


def _another(blocks: int, elapsed: float, seconds: float) -> bool:
    """Whether there is room for one more block, after ``blocks`` that took ``elapsed`` s."""
    return blocks == 0 or (blocks < _BLOCKS and elapsed * (blocks + 1) / blocks <= seconds)


def _without(training: Training, count: int) -> list[float]:
    run_steps(training, Recorder(1), 1)
    return run_steps(training, Recorder(1), count)


def run_steps(training: Training, recorder: Recorder, count: int) -> list[float]:
    """Milliseconds of each of ``count`` steps: by CUDA events between them on a GPU, else by the clock.

    Waits for the device before the first and after the last.
    """
    training.wait()
    clock: _DeviceClock | _HostClock = _DeviceClock() if training.device.type == "cuda" else _HostClock()
    clock.mark()
    for _ in range(count):
        recorder.before_step()
        recorder.after_step(training.step())
        clock.mark()
    training.wait()
    return clock.laps_ms()


class _DeviceClock:
    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)

    def laps_ms(self) -> list[float]:
        return [begin.elapsed_time(end) for begin, end in zip(self._events, self._events[1:], strict=False)]


class _HostClock:
    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def laps_ms(self) -> list[float]:
        return [1e3 * (end - begin) for begin, end in zip(self._marks, self._marks[1:], strict=False)]


def _reset_peak(training: Training) -> None:
    if training.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(training: Training) -> int | None:
    return torch.cuda.max_memory_allocated() if training.device.type == "cuda" else None
