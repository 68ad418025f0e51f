"""At which steps a loss scaler skipped, where lines say that it did and other lines say which step it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Clock", "Seen", "scales_of", "spread"]


@dataclass(frozen=True, slots=True)
class Seen:
    """An overflow on ``line`` at the ``time`` of its stamp, if it has one; ``scale`` is the one after it, if
    it is told."""

    line: int
    scale: float | None
    time: float | None


def scales_of(seen: Seen) -> dict[str, float]:
    """The scale of an overflow as a point of a series."""
    return {} if seen.scale is None else {"loss_scale": seen.scale}


def spread(before: int, last: int, count: int) -> list[int]:
    """``count`` different steps of those after ``before`` up to ``last``, evenly: where in an interval of logging a
    scaler skipped is not known, and side by side would be the worst case."""
    length = last - before
    count = min(count, length)
    return [before + round((i + 1) * length / count) for i in range(count)] if count else []


class Clock:
    """The steps of overflows from their time stamps, where the step is printed only now and then."""

    def __init__(self) -> None:
        self._at: tuple[int, float] | None = None
        self._seconds: float | None = None

    def tick(self, step: int, time: float | None) -> None:
        """``step`` was printed at ``time``."""
        if time is None:
            return
        if self._at is not None and step > self._at[0] and time > self._at[1]:
            self._seconds = (time - self._at[1]) / (step - self._at[0])
        self._at = step, time

    def place(self, seen: Sequence[Seen], after: int, last: int | None) -> list[int]:
        """The steps of ``seen``, after ``after`` and up to ``last``: by the time that a step takes, one after the other
        where that is not known."""
        steps: list[int] = []
        step = after
        for one in seen:
            guess = step + 1
            if self._at is not None and self._seconds is not None and one.time is not None:
                guess = max(guess, self._at[0] + round((one.time - self._at[1]) / self._seconds))
            step = guess
            steps.append(step)
        if last is not None:
            room = range(last - len(seen) + 1, last + 1)
            steps = [min(step, most) for step, most in zip(steps, room, strict=True)]
        return steps
