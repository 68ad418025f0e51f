"""The step of a record that does not print one: from the progress bars around it, or from its number."""

from __future__ import annotations

import math
from dataclasses import dataclass

from floatscope_server.readers.progress import Bar
from floatscope_server.readers.text import step_of

__all__ = ["Pending", "Steps", "same_record"]

_SHARED = ("loss", "epoch", "learning_rate", "eval_loss")


@dataclass(slots=True)
class Pending:
    """A record that waits for the progress bar behind it. ``before`` is what the bar in front of it showed, ``prefix``
    what stands before the record in its line."""

    line: int
    values: dict[str, float]
    before: int | None
    prefix: str

    @property
    def trains(self) -> bool:
        """Whether it is a record of a training step, not of an evaluation or of the whole."""
        return "loss" in self.values


def same_record(one: Pending, other: Pending) -> bool:
    """Whether the two are prints of the same record: LLaMA-Factory logs each one with fewer digits beside what the
    Trainer prints, and several hosts print it with their names before it."""
    if one.values.keys() == other.values.keys():
        return one.prefix != other.prefix and one.values == other.values
    shared = [name for name in _SHARED if name in one.values and name in other.values]
    if not shared or one.trains != other.trains:
        return False
    return all(_alike(name, one.values[name], other.values[name]) for name in shared)


def _alike(name: str, one: float, other: float) -> bool:
    if one != one or other != other:
        return one != one and other != other
    if name == "learning_rate":
        return abs(one - other) <= 1e-3 * max(abs(one), abs(other))
    return abs(one - other) <= (0.01 if name == "epoch" else 1e-4)


class Steps:
    """Which bar is that of the training, and where it stands."""

    def __init__(self) -> None:
        self.bar: Bar | None = None
        self.interval: int | None = None
        """``logging_steps`` where the log prints it."""
        self._other: Bar | None = None
        self._records = 0
        self._last: int | None = None
        self._before = 0
        self._behind = 0

    def begin(self) -> None:
        """The training begins anew."""
        self._last = None

    @property
    def done(self) -> int | None:
        """What the training's bar shows."""
        return None if self.bar is None else self.bar.done

    def see(self, bar: Bar) -> bool:
        """Whether ``bar`` is the training's. Evaluations have bars too, with other totals: a bar becomes the training's
        when it is the first, or stands before a record of a training step that no other stands before."""
        if self.bar is not None and bar.total != self.bar.total:
            self._other = bar
            return False
        self.bar, self._other = bar, None
        return True

    def before(self, *, trains: bool) -> int | None:
        """What the bar before a record shows."""
        if trains and self._other is not None and self.bar is not None and self.bar.done == self._last:
            self.bar, self._other = self._other, None
        return self.done

    def of(self, record: Pending, after: int | None) -> int:
        """The step of ``record``; ``after`` is what the bar behind it shows."""
        step = self._of(record, after)
        if record.trains:
            self._records += 1
            self._last = step
        return step

    def _of(self, record: Pending, after: int | None) -> int:
        if (told := step_of(record.values.get("step"))) is not None:
            return told
        before = record.before
        if before is None:
            if after is None:
                return (self._records + record.trains) * (self.interval or 1)
            if record.trains:
                self._behind = after
            return after
        if after is None or not record.trains or after <= before:
            return before
        return self._choose(before, after)

    def _choose(self, before: int, after: int) -> int:
        """The bar before a record may lag, the one behind it may be of a later step. A record comes every so many
        steps: the bars whose numbers have the larger common divisor are the right ones."""
        only_behind = self._before == 0 and self._behind > 1 and after % self._behind == 0
        self._before, self._behind = math.gcd(self._before, before), math.gcd(self._behind, after)
        if self._last is None:
            for divisor in (self.interval or 10, 10, 5):
                if (before % divisor == 0) != (after % divisor == 0):
                    return before if before % divisor == 0 else after
            return before
        if only_behind:
            return after
        if before <= self._last or self._behind > self._before:
            return after
        return before
