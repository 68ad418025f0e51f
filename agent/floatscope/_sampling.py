"""What is read in a step: by the user's intervals, as the governor widens them, and what a closer look adds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch

from floatscope import wire
from floatscope._alert import Alert, Reaction
from floatscope._config import Config
from floatscope._device_clock import DeviceClock
from floatscope._governor import Change, Governor, StepCost
from floatscope._log import logger
from floatscope._looks import Looks, Told
from floatscope._meter import drain
from floatscope._record import Sink, Trouble

__all__ = ["Sampling", "Wanted"]

_REPORT_EVERY = 16
"""Steps between two looks at the sum for the server; a look takes some 30 us."""
_TIMED_EVERY = 16
"""Steps in which the device's time is taken, besides those that read more than gradients."""
_ASKED_EVERY = 4
"""Steps between two looks at whether the device waits for the host, once some were taken: an event takes 80 us of the
training thread where caches are cold."""
_AROUND = 1.25
"""Times the seconds between the events around a reading: rows are copied and cleared outside of them, and what runs
next starts with other caches. On an H200 a training of 125M parameters became 0.5 to 0.6 ms a step slower where events
said 0.43."""
_SMOOTH = 0.1
"""Weight of the newest step in running means."""
_SPARE_STEP_S = 0.1
"""Shorter steps take no histograms for the flight recorder alone: the host memory for transfers holds those of 8 steps,
the sender looks five times a second, and merging them takes some milliseconds of its thread."""


class Wanted(NamedTuple):
    """What is read in one step. ``spare``: the histograms are taken for the flight recorder only. ``layers``: those of
    which ``activations`` are read, by names of theirs or of a module around them; empty for all. ``everything``: all
    that is not switched off, because of a closer look."""

    gradients: bool
    activations: bool
    weights: bool
    updates: bool
    histograms: bool
    spare: bool = False
    layers: tuple[str, ...] = ()
    everything: bool = False


class Sampling:
    """``device`` is where the model's parameters are; ``on_alert`` the user's code."""

    def __init__(self, config: Config, device: torch.device, on_alert: Callable[[Alert], object]) -> None:
        self.clock = DeviceClock()
        self.reaction = Reaction(on_alert)
        self._governor = Governor(
            {
                "gradients": config.gradients_every,
                "activations": config.activations_every,
                "weights": config.weights_every,
                "updates": config.updates_every,
                "histograms": config.histograms_every,
            },
            config.overhead_budget,
        )
        self._asked = config.gradients_every
        self._warned = False
        self._device = device
        self._on_host = device.type == "cpu"
        self._spare = not self._on_host and config.flight_recorder_steps > 0 and config.histograms_every > 0
        self._looks = Looks(config.overhead_budget, config.first_step)
        self._last_end: float | None = None
        self._last_cpu_s = 0.0
        self._steps = 0
        self._exposed = 1.0
        """Of the newest steps, roughly, the share in which the device waited for the host: else host time is free."""
        self._unasked = False
        """In this step nobody asks."""
        self._typical_s = 0.0
        self._events: list[wire.Event] = []
        self._next: tuple[int, Wanted] | None = None
        """What was decided for the step that begins."""

    def wanted(self, step: int) -> Wanted:
        """What to read in ``step``."""
        if self._next is not None and self._next[0] == step:
            return self._next[1]
        return self._decide(step)

    def _decide(self, step: int) -> Wanted:
        governor = self._governor
        due = Wanted(
            gradients=governor.due("gradients", step),
            activations=governor.due("activations", step),
            weights=governor.due("weights", step),
            updates=governor.due("updates", step),
            histograms=governor.due("histograms", step),
        )
        if self._looks.left:
            kinds = self._looks.kinds()
            closer = {kind: True for kind in kinds if governor.every[kind]}
            layers = () if due.activations else self._looks.layers()
            everything = len(kinds) == len(wire.READINGS) and not layers
            return due._replace(**closer, layers=layers, everything=everything)
        alone = due.gradients and not (due.activations or due.weights or due.histograms)
        if self._spare and alone and self._typical_s >= _SPARE_STEP_S:
            return due._replace(histograms=True, spare=True)
        return due

    def mark(self) -> None:
        """An optimizer is about to step."""
        self._unasked = self._steps > _REPORT_EVERY and self._steps % _ASKED_EVERY > 0
        if not self._unasked:
            self.clock.mark(self._device)

    def end_step(self, step: int, read: Wanted, sink: Sink) -> tuple[wire.Event, ...]:
        """Account for ``step``, in which ``read`` was read; the events to be recorded with it. Never waits."""
        now, spent = perf_counter(), drain()
        if not self._unasked:
            caught_up = float(self.clock.caught_up())
            self._exposed += (caught_up - self._exposed) * (_SMOOTH if self._steps > _REPORT_EVERY else 0.5)
        self._unasked = False
        begun, self._last_end = self._last_end, now
        background = 0.0
        if self._on_host:
            # There our threads take the training's cores, and the interpreter between two of its operations.
            cpu_s = sink.cpu_s
            background, self._last_cpu_s = max(0.0, cpu_s - self._last_cpu_s), cpu_s
        ours = 0.0
        if begun is not None:
            ours = self._account(step, now - begun, read, spent, background, sink)
        if looking := self._looks.left:
            self._looks.end_step(ours)
        begun_looks = []
        for order in sink.orders():
            if isinstance(order, wire.Focus):
                begun_looks.append(self._looks.ask(order))
            elif isinstance(order, Trouble):
                begun_looks.append(self._looks.notice(order, now))
            else:
                self.reaction.take(order)
        if looking and not self._looks.left:
            self._tell(step, "focus", {"state": "end"})
        for told in filter(None, begun_looks):
            self._tell(step, "focus", told)
        wanted = self._decide(step + 1)
        self._next = step + 1, wanted
        self.clock.start_step(wanted=wanted.activations or wanted.weights or (step + 1) % _TIMED_EVERY == 0)
        if not self._events and not self.reaction.events:
            return ()
        events, self._events = (*self._events, *self.reaction.events), []
        self.reaction.events.clear()
        return events

    def _account(
        self, step: int, step_s: float, read: Wanted, spent: dict[str, float], background: float, sink: Sink
    ) -> float:
        """Seconds of the step that were ours."""
        fixed, readings = 0.0, {}
        for charge, seconds in spent.items():
            exposed = seconds * self._exposed
            if charge != "step" and getattr(read, charge):
                readings[charge] = exposed + _AROUND * self.clock.seconds.get((charge, read.histograms), 0.0)
            else:
                fixed += exposed
        cost = StepCost(
            step_s=step_s,
            fixed_s=fixed,
            readings=readings,
            histograms=read.histograms,
            background_s=background,
        )
        self._typical_s += _SMOOTH * (step_s - self._typical_s)
        for change in self._governor.observe(cost, suspended=self._looks.left > 0):
            self._log(step, change)
            self._tell(step, "sampling", {"kind": change.kind, "every": change.every, "because": change.because})
        self._steps += 1
        if self._steps % _REPORT_EVERY == 0:
            sink.report(self._cost())
        return fixed + sum(readings.values()) + background

    def _log(self, step: int, change: Change) -> None:
        """Say it where the training is seen; of gradients, which everybody expects in each step, more loudly, once."""
        asked = self._asked
        if change.kind == "gradients" and change.every > asked and not self._warned:
            self._warned = True
            logger.warning(
                "from step %d on gradients are read every %d steps, not every %s: %s. "
                "watch(..., overhead_budget=0) or floatscope run --set overhead_budget=0 reads as often as asked for "
                "at any cost, a larger budget more often. "
                "This is said once.",
                step + 1,
                change.every,
                "step" if asked == 1 else f"{asked} steps",
                change.because,
            )
        else:
            often = "step" if change.every == 1 else f"{change.every} steps"
            logger.info("from step %d on %s are read every %s: %s", step + 1, change.kind, often, change.because)

    def conclude(self, sink: Sink) -> None:
        """No step follows: hand over the latest figures, which may be the only ones of a short run."""
        if self._governor.measured:
            sink.report(self._cost())

    def _cost(self) -> wire.Cost:
        governor = self._governor
        limit = f"looking closer for {self._looks.left} more steps" if self._looks.left else governor.limit
        return wire.Cost(
            share=governor.share, mean=governor.mean, budget=governor.budget, limit=limit, every=dict(governor.every)
        )

    def _tell(self, step: int, kind: str, detail: Told) -> None:
        self._events.append(wire.Event(step=step, kind=kind, detail=detail))
