"""What a log says, step by step, as it grows: each step once, and later only what is new of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from floatscope_server.check.timeline import Moment, Timeline
from floatscope_server.readers import Extreme, Happening, Reading, Row

__all__ = ["Course"]


@dataclass(slots=True)
class _Told:
    """What was told of a step of which more may come."""

    values: dict[str, float] = field(default_factory=dict)
    meaning: dict[str, float] = field(default_factory=dict)
    happenings: int = 0
    devices: int = 0
    extremes: int = 0


class Course:
    """Takes what a reader finds and gives moments to be sent. Steps that may still get more are held back until
    somebody asks for them (``waiting``), since a log that has come to a stop may stay there."""

    def __init__(self, late: int, *, scattered: bool) -> None:
        """``late`` as in ``LogFormat``. ``scattered``: points of a step come at any time, and what goes back is a
        training that began anew only where a series does."""
        self._timeline = Timeline(late)
        self._told: dict[int, _Told] = {}
        self._scattered = scattered
        self._newest: dict[str, int] = {}
        self._given = -1

    def take(self, item: Row | Happening | Extreme | Reading) -> Iterator[Moment]:
        """The next item; the moments that are complete because of it."""
        if isinstance(item, Row) and self._scattered:
            yield from self._anywhere(item)
        elif isinstance(item, Row):
            yield from self._news(self._timeline.row(item))
        elif isinstance(item, Happening):
            yield from self._news(self._timeline.happening(item))
        elif isinstance(item, Extreme):
            yield from self._news(self._timeline.extreme(item))
        else:
            self._timeline.reading(item)

    def begins_anew(self) -> bool:
        """Whether a training has begun anew with the last item: what ``take`` gave was of the one before."""
        return self._timeline.begins_anew()

    def _anywhere(self, row: Row) -> Iterator[Moment]:
        if any(row.step < self._newest.get(name, -1) for name in row.values):
            row.restart = True
            self._newest.clear()
            self._given = -1
        self._newest.update(dict.fromkeys(row.values, row.step))
        if row.step > self._given:
            yield from self._news(self._timeline.row(row))
        else:
            yield Moment(step=row.step, line=row.line, row=0, values=row.values, meaning=row.meaning)

    def finish(self) -> Iterator[Moment]:
        """Nothing more comes."""
        yield from self._news(self._timeline.finish())

    def waiting(self) -> Iterator[Moment]:
        """What is known so far of the steps that are held back."""
        for moment in self._timeline.waiting():
            told = self._told.setdefault(moment.step, _Told())
            news = _beyond(told, moment)
            told.values, told.meaning = dict(moment.values), dict(moment.meaning)
            told.happenings, told.devices = len(moment.happenings), len(moment.devices)
            told.extremes = len(moment.extremes)
            if news is not None:
                yield news

    def _news(self, moments: Iterable[Moment]) -> Iterator[Moment]:
        for moment in moments:
            if self._newest:
                self._given = max(self._given, moment.step)
            told = self._told.pop(moment.step, None)
            news = moment if told is None else _beyond(told, moment)
            if news is not None:
                yield news


def _beyond(told: _Told, moment: Moment) -> Moment | None:
    """``moment`` without what was ``told`` of it; None if nothing is left."""
    news = dataclasses.replace(
        moment,
        values=_changed(told.values, moment.values),
        meaning=_changed(told.meaning, moment.meaning),
        happenings=moment.happenings[told.happenings :],
        devices=moment.devices[told.devices :],
        extremes=moment.extremes[told.extremes :],
    )
    fresh = (news.values, news.meaning, news.happenings, news.devices, news.extremes)
    return news if any(fresh) else None


def _changed(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    # A NaN differs from itself; what was not finite stays as it was (``Moment.take``).
    return {
        name: value
        for name, value in now.items()
        if name not in before or (value != before[name] and before[name] == before[name])
    }
