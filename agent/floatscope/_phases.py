"""Where the time of the training thread goes: data, forward pass, backward pass, optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from floatscope._gradients import GradientTap
from floatscope._own_ops import backward_runs
from floatscope._patches import observe
from floatscope._recorder import Recorder

__all__ = ["Phases"]


class Phases:
    """Measures phases, in seconds of a step; they add up to the step, as what is in no other one is ``forward``.

    On a card these are the times that it takes to launch the work, and to wait wherever the program does.
    """

    def __init__(self, recorder: Recorder, gradients: GradientTap) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._spent = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.0)
        self._since = time.perf_counter()
        self._began: dict[str, float] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to measure."""
        tap = self._gradients
        before = tap.optimizing, tap.optimized

        def restore() -> None:
            tap.optimizing, tap.optimized = before

        self._undo.append(observe(torch.autograd, "backward", _Backward(self)))
        self._undo.append(observe(_BaseDataLoaderIter, "__next__", _Data(self)))
        tap.optimizing, tap.optimized = self._optimizing, self._optimized
        self._undo.append(restore)

    def remove(self) -> None:
        """Measure no longer."""
        while self._undo:
            self._undo.pop()()

    def begin(self, phase: str) -> None:
        """The program was in its forward pass, and now is in ``phase``."""
        now = time.perf_counter()
        self._spent["forward"] += now - self._since
        self._since = self._began[phase] = now

    def end(self, phase: str) -> None:
        """``phase`` is over; what follows counts as forward pass until the next one."""
        began = self._began.pop(phase, None)
        if began is not None:
            now = time.perf_counter()
            self._spent[phase] += now - began
            self._since = now

    def end_step(self) -> None:
        """Report, and begin anew."""
        now = time.perf_counter()
        self._spent["forward"] += now - self._since
        self._since = now
        for phase, seconds in self._spent.items():
            self._recorder.buffer.own[f"phase/{phase}_s"] = seconds
            self._spent[phase] = 0.0

    def _optimizing(self) -> None:
        self.begin("optimizer")

    def _optimized(self) -> None:
        self.end("optimizer")


class _Backward:
    """Sees ``torch.autograd.backward(tensors, ...)``, which ``Tensor.backward`` calls."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not backward_runs():  # a checkpoint's own
            self._phases.begin("backward")

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        if not backward_runs():
            self._phases.end("backward")


class _Data:
    """Sees ``__next__`` of the iterator of a ``DataLoader``."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._phases.begin("data")

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self._phases.end("data")
