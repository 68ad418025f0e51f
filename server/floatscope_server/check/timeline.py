"""Rows in the order of their steps, one a step."""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from floatscope import wire
from floatscope_server.readers import Extreme, Happening, Reading, Row

__all__ = ["Moment", "Timeline"]


@dataclass(slots=True, kw_only=True)
class Moment:
    """All that a file says of one step. ``line`` is that of the first record in it, ``row`` the 0-based position of
    that record, ``restart`` whether the training began anew before it."""

    step: int
    line: int
    row: int
    values: dict[str, float] = field(default_factory=dict)
    meaning: dict[str, float] = field(default_factory=dict)
    # Nearly all steps have none of these: a shared tuple costs no list each.
    happenings: Sequence[Happening] = ()
    devices: Sequence[wire.Device] = ()
    extremes: Sequence[Extreme] = ()
    restart: bool = False

    def take(self, row: Row) -> None:
        """Another row of the step. Of two finite values the larger counts; one that is not finite counts always."""
        if not (self.values or self.meaning):
            self.values, self.meaning = row.values, row.meaning
            return
        for mine, others in ((self.values, row.values), (self.meaning, row.meaning)):
            for name, value in others.items():
                held = mine.get(name)
                if held is None or (math.isfinite(held) and not value <= held):
                    mine[name] = value


class Timeline:
    """Holds the newest ``late`` + 1 steps, since rows of them may still come."""

    def __init__(self, late: int) -> None:
        self._late = late
        self._held: dict[int, Moment] = {}
        self._steps: list[int] = []
        self._given: int | None = None
        self._restart = False
        self.records = 0

    def row(self, row: Row) -> Iterator[Moment]:
        """The steps that are complete because ``row`` came."""
        behind = self._given is not None and row.step <= self._given
        if row.restart or (behind and row.records):
            yield from self.finish()
            self._given, self._restart = None, True
        elif behind:
            return
        moment = yield from self._at(row.step, row.line)
        moment.take(row)
        self.records += row.records

    def happening(self, found: Happening) -> Iterator[Moment]:
        """The same for an event."""
        step = found.event.step if self._given is None else max(found.event.step, self._given + 1)
        if self._held:
            step = max(step, min(self._held))
        moment = yield from self._at(step, found.line)
        moment.happenings = [*moment.happenings, found]

    def reading(self, found: Reading) -> None:
        """Memory of a card that a training log tells of, at its newest step."""
        if self._held:
            newest = self._held[max(self._held)]
            newest.devices = [*newest.devices, found.device]

    def extreme(self, found: Extreme) -> Iterator[Moment]:
        """The same for an extreme of a layer; steps that go back are judged as they come."""
        if self._given is not None and found.step <= self._given:
            yield from self.finish()
            self._given, self._restart = None, True
        moment = yield from self._at(found.step, found.line)
        moment.extremes = [*moment.extremes, found]
        for name, value in found.values.items():
            moment.values[name] = value
        self.records += bool(found.values)

    def waiting(self) -> Iterator[Moment]:
        """The steps that are held, as far as they are known. They are given later all the same."""
        return (self._held[step] for step in sorted(self._held))

    def begins_anew(self) -> bool:
        """Whether a training has begun anew since the last call; then no moment says so."""
        anew, self._restart = self._restart, False
        return anew

    def finish(self) -> Iterator[Moment]:
        """All steps that are held."""
        for step in sorted(self._held):
            yield self._give(step)

    def _at(self, step: int, line: int) -> Generator[Moment, None, Moment]:
        moment = self._held.get(step)
        if moment is None:
            moment = self._held[step] = Moment(step=step, line=line, row=self.records)
            heapq.heappush(self._steps, step)
            while len(self._held) > self._late + 1:
                yield self._give(self._steps[0])
        return moment

    def _give(self, step: int) -> Moment:
        moment = self._held.pop(step)
        heapq.heappop(self._steps)
        moment.restart, self._restart = self._restart, False
        self._given = step
        return moment
