"""What a recorder costs the host: time inside its hooks, and how often it makes the host wait for the device."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from floatscope._bench.hooks import all_hooks, module_hooks
from floatscope._bench.recorders import Recorder
from floatscope._bench.training import Training

__all__ = ["HostCost", "host_cost"]

_STEPS = 8
_SECONDS = 1.5
_SYNC_WARNING = "called a synchronizing CUDA operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """Of a recorder that acts in every step."""

    step_us: float
    """Microseconds a step that the training thread spent in its hooks and at the end of the step."""
    forward_hook_us: float | None
    """Microseconds of one call of a forward hook; None without any."""
    syncs: float | None
    """Waits for the device a step, in the training's threads; None without a GPU."""


def host_cost(training: Training, recorder: Recorder) -> HostCost:
    """From a few steps that are not timed otherwise.

    The device is idle when a step begins and when the optimizer does, so that no launch waits for room in the queue.
    Hooks on tensors that exist during a step only are not seen.
    """
    before = {id(hooks): set(hooks) for hooks in all_hooks(training)}
    recorder.attach(training)
    try:
        begin = time.perf_counter()
        _step(training, recorder)
        training.wait()
        count = max(1, min(_STEPS, int(_SECONDS / (time.perf_counter() - begin))))
        syncs = _count_syncs(training, recorder, count) if training.device.type == "cuda" else None
        return _time_hooks(training, recorder, count, before, syncs)
    finally:
        training.before_optimizer = _nothing
        recorder.detach()


def _time_hooks(
    training: Training, recorder: Recorder, count: int, before: dict[int, set[int]], syncs: float | None
) -> HostCost:
    forward = {id(hooks) for hooks in module_hooks(training.model)}
    clock, forward_clock = _Clock(), _Clock()
    for hooks in all_hooks(training):
        also = forward_clock if id(hooks) in forward else None
        # In place and under the same keys, so that the recorder's own handles still remove them.
        for key in set(hooks) - before.get(id(hooks), set()):
            hooks[key] = clock.timed(hooks[key], also)
    recorder_end = clock.timed(recorder.after_step)
    training.before_optimizer = training.wait
    totals = []
    for _ in range(count):
        training.wait()
        clock.seconds = 0.0
        recorder.before_step()
        loss = training.step()
        training.wait()
        recorder_end(loss)
        totals.append(clock.seconds)
    each = forward_clock.seconds / forward_clock.calls if forward_clock.calls else None
    return HostCost(step_us=1e6 * median(totals), forward_hook_us=None if each is None else 1e6 * each, syncs=syncs)


class _Clock:
    """Adds up time in what it wraps; what is called from within counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self._inside = False

    def timed(self, function: Callable[..., Any], also: _Clock | None = None) -> Callable[..., Any]:
        """``function``, whose time counts here and, as it is, in ``also``."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (whatever the hook returns)
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - begin
                for each in (self,) if also is None else (self, also):
                    each.seconds += seconds
                    each.calls += 1
                self._inside = False

        return wrapper


def _count_syncs(training: Training, recorder: Recorder, count: int) -> float:
    """By CUDA's own count of waits, of which it names each in a warning. An explicit synchronisation is none."""
    seen = 0

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        nonlocal seen
        seen += _SYNC_WARNING in str(message) and not _in_background()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(count):
                _step(training, recorder)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return seen / count


def _in_background() -> bool:
    """Whether this is a thread that somebody started in Python. Those of autograd, which run hooks too, are not."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)


def _step(training: Training, recorder: Recorder) -> None:
    recorder.before_step()
    recorder.after_step(training.step())


def _nothing() -> None:
    pass
