"""Where the time of a training goes: data, forward pass, backward pass, optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from floatscope._gradients import GradientTap
from floatscope._own_ops import backward_runs
from floatscope._patches import observe
from floatscope._recorder import Recorder

__all__ = ["DevicePhases", "Mark", "Phases", "marks_of"]

_PHASES = ("data", "forward", "backward", "optimizer")
_MEGATRON_S = "megatron.core.pipeline_parallel.schedules"
_MOST = 256
"""Marks of a step on a card, each some 3 us of the host: a step of more micro-batches tells no phases."""


class Mark(Protocol):
    """A ``torch.cuda.Event`` with timing, which was recorded."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...  # noqa: ANN401 (another one)


def marks_of(parameters: Iterable[torch.Tensor]) -> Callable[[], Mark] | None:
    """What records an event on the current stream of the card that ``parameters`` are on; None where they are on none.

    Of several cards that of the first parameter which is on one.
    """
    device = next((parameter.device for parameter in parameters if parameter.device.type == "cuda"), None)
    if device is None:
        return None

    def mark() -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    return mark


class DevicePhases:
    """Phases of a step on a card: ``phases[i]`` lies between ``marks[i]`` and the next. Asked by another thread."""

    def __init__(self, phases: Sequence[str], marks: Sequence[Mark]) -> None:
        self._phases = phases
        self._marks = marks

    def ready(self) -> bool:
        """Whether the card has passed all marks. No host synchronisation."""
        return all(mark.query() for mark in reversed(self._marks))

    def seconds(self) -> dict[str, float]:
        """Of each phase what the step took; waits for the marks."""
        for mark in self._marks:
            mark.synchronize()
        spent = dict.fromkeys(_PHASES, 0.0)
        for phase, (first, last) in zip(self._phases, pairwise(self._marks), strict=True):
            # A program that changes its stream may have passed them in another order.
            spent[phase] += 1e-3 * max(0.0, first.elapsed_time(last))
        return spent


class Phases:
    """Measures phases, in seconds of a step; they add up to the step, as what is in no other one is ``forward``.

    On the host by its clock. On a card by events on the current stream, which are looked at when the step arrives: what
    the host does meanwhile shows only where the card waits for it. No host synchronisation.
    """

    def __init__(self, recorder: Recorder, gradients: GradientTap, mark: Callable[[], Mark] | None = None) -> None:
        """``mark`` records an event where the model's device has such; None measures by the host's clock."""
        self._recorder = recorder
        self._gradients = gradients
        self._mark_device = mark
        self._within: list[str] = []
        """Phases that have begun, the outer one first."""
        self._spent = dict.fromkeys(_PHASES, 0.0)
        self._since = perf_counter()
        self._passed: list[str] = []
        self._marks: list[Mark] = []
        """On a card: one where the step began, and one at the end of each of ``passed``."""
        self._whole = False
        """Whether they are all there."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to measure."""
        if self._mark_device is not None:
            self._begin_step([])
        tap = self._gradients
        before = tap.optimizing, tap.optimized

        def restore() -> None:
            tap.optimizing, tap.optimized = before

        self._undo.append(observe(torch.autograd, "backward", _Backward(self)))
        self._undo.append(observe(_BaseDataLoaderIter, "__next__", _Data(self)))
        if (schedules := sys.modules.get(_MEGATRON_S)) is not None:
            # It calls the engine itself.
            self._undo.append(observe(schedules, "custom_backward", _Backward(self)))
        tap.optimizing, tap.optimized = self._optimizing, self._optimized
        self._undo.append(restore)

    def remove(self) -> None:
        """Measure no longer."""
        while self._undo:
            self._undo.pop()()

    def begin(self, phase: str) -> None:
        """The program is in ``phase`` now; in its forward pass before, or in the backward pass that it goes on with."""
        inside = phase == "optimizer" and self._within == ["backward"]
        if not inside:
            # What an exception has left, such as the StopIteration of a loader.
            self._within.clear()
        self._over("backward" if inside else "forward")
        self._within.append(phase)

    def end(self, phase: str) -> None:
        """``phase`` is over."""
        if phase in self._within:
            self._over(phase)
            del self._within[self._within.index(phase) :]

    def end_step(self) -> None:
        """Report, and begin anew."""
        self._over(self._within[-1] if self._within else "forward")
        if self._mark_device is None:
            for phase, seconds in self._spent.items():
                self._recorder.buffer.own[f"phase/{phase}_s"] = seconds
                self._spent[phase] = 0.0
            return
        if self._whole:
            self._recorder.buffer.phases = DevicePhases(self._passed, self._marks)
        self._begin_step(self._marks[-1:] if self._whole else [])

    def _begin_step(self, last: list[Mark]) -> None:
        """On a card. ``last``: the mark at which the step before has ended."""
        assert self._mark_device is not None, "the host takes its time as it is"
        self._passed = []
        self._marks = last if last or self._recorder.capturing() else [self._mark_device()]
        self._whole = bool(self._marks)

    def _over(self, phase: str) -> None:
        if self._mark_device is None:
            now = perf_counter()
            self._spent[phase] += now - self._since
            self._since = now
        elif not self._whole or self._recorder.capturing() or len(self._marks) >= _MOST:
            # What is recorded into a graph has no time of its own.
            self._whole = False
        else:
            self._passed.append(phase)
            self._marks.append(self._mark_device())

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
