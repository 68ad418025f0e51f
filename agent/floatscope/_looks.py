"""Closer looks: for some steps more is read than the intervals say, because somebody asked or something broke. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from floatscope import wire
from floatscope._record import Trouble

__all__ = ["STEPS_AFTER_SKIP", "STEPS_AFTER_TROUBLE", "STEPS_AN_HOUR", "Looks", "Told"]

STEPS_AFTER_TROUBLE = 512
"""Steps that the agent looks closer for by itself after a step that was not finite: what broke once breaks again, if it
does, within some hundreds."""
STEPS_AFTER_SKIP = 32
"""The same after a step that a scaler skipped: a collapse comes within a few, the scaler's next attempt after 2000."""
STEPS_AN_HOUR = 1024
"""Most such steps within an hour."""
_HOUR_S = 3600.0
_START_UP = 50
"""First steps, in which a scaler that halves is looking for its level."""
_MOST_LOOKS = 16
_NAMES_LENGTH = 200
"""Characters of the layers' names in an event."""

Told = dict[str, str | int | float | bool | None]


@dataclass(slots=True, kw_only=True)
class _Look:
    left: int
    kinds: frozenset[str]
    layers: tuple[str, ...] = ()


class Looks:
    """What is looked closer at now. ``budget`` is the share of the step time that the agent may cost.

    In an hour from the first look that it began by itself, the agent spends at most ``STEPS_AN_HOUR`` steps and, of its
    own time, ``budget`` of that hour on such looks; without a budget only steps count. Whatever was asked for is done.
    """

    def __init__(self, budget: float, first_step: int = 0) -> None:
        self._allowed_s = budget * _HOUR_S or math.inf
        self._settled = first_step + _START_UP
        self._asked: list[_Look] = []
        self._own = 0
        self._hour_began = -math.inf
        self._own_steps = 0
        self._own_s = 0.0

    @property
    def left(self) -> int:
        """Steps until none is left."""
        return max(self._own, *(look.left for look in self._asked)) if self._asked else self._own

    def ask(self, order: wire.Focus) -> Told | None:
        """Take an order; what is to be told of its beginning, None where it is for no step."""
        steps = max(0, min(order.steps, wire.MAX_FOCUS_STEPS))
        kinds = frozenset(wire.READINGS).intersection(order.kinds or wire.READINGS)
        if not (steps and kinds):
            return None
        if len(self._asked) == _MOST_LOOKS:
            self._asked.remove(min(self._asked, key=lambda look: look.left))
        self._asked.append(_Look(left=steps, kinds=kinds, layers=order.layers))
        told: Told = {"state": "begin", "steps": steps}
        if order.kinds:
            told["kinds"] = ", ".join(kind for kind in wire.READINGS if kind in kinds)
        if order.layers:
            told["layers"] = ", ".join(order.layers)[:_NAMES_LENGTH]
        return told

    def notice(self, trouble: Trouble, now: float) -> Told | None:
        """Begin a look because of ``trouble``, or end it because it has shown enough; ``now`` in seconds."""
        if trouble.shown:
            # What a scaler catches meanwhile is another matter than what the look is for.
            if not trouble.skipped or self._own <= STEPS_AFTER_SKIP:
                self._own = 0
            return None
        if not trouble.first or (trouble.skipped and trouble.step < self._settled):
            return None
        if now - self._hour_began >= _HOUR_S:
            self._hour_began, self._own_steps, self._own_s = now, 0, 0.0
        wanted = STEPS_AFTER_SKIP if trouble.skipped else STEPS_AFTER_TROUBLE
        steps = min(wanted, STEPS_AN_HOUR - self._own_steps)
        if steps <= self._own or self._own_s >= self._allowed_s:
            return None
        self._own = steps
        return {"state": "begin", "steps": steps, "because": f"step {trouble.step} was not finite"}

    def end_step(self, spent_s: float) -> None:
        """A step is over, of which ``spent_s`` seconds were the agent's."""
        for look in self._asked:
            look.left -= 1
        self._asked = [look for look in self._asked if look.left]
        if self._own:
            self._own -= 1
            self._own_steps += 1
            self._own_s += spent_s
            if self._own_s >= self._allowed_s:
                self._own = 0

    def kinds(self) -> frozenset[str]:
        """The readings that are wanted in the step to come."""
        if self._own:
            return frozenset(wire.READINGS)
        return frozenset().union(*(look.kinds for look in self._asked))

    def layers(self) -> tuple[str, ...]:
        """The layers whose outputs are wanted in it; empty for all."""
        if self._own or not all(self._named()):
            return ()
        return tuple(dict.fromkeys(name for names in self._named() for name in names))

    def _named(self) -> Iterator[tuple[str, ...]]:
        return (look.layers for look in self._asked if "activations" in look.kinds)
