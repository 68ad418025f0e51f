"""How fast steps come: the mean of their own times over the last minutes of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Pace"]

_WINDOW_S = 300.0
_MARK_S = 5.0
"""Steps of so many seconds are kept as one sum, so that a run has some sixty at most."""
_LEAST_STEPS = 3


class Pace:
    """Sums of step times, the newest 300 s of them. By the agent's clock: what a spool delivers late keeps its pace."""

    def __init__(self, stored: Sequence[Sequence[float]] = ()) -> None:
        """``stored``: as ``stored()`` gave it."""
        self._marks = [(int(last), int(steps), float(seconds)) for last, steps, seconds in stored]

    def stored(self) -> list[tuple[int, int, float]]:
        """(last step, steps, seconds) of each sum, oldest first."""
        return self._marks

    def restart(self) -> None:
        """Another attempt has begun, perhaps on another machine."""
        self._marks = []

    def add(self, steps: npt.NDArray[np.int64], seconds: npt.NDArray[np.float64]) -> None:
        """Take in points of ``step_time_s``, both [n], in the order in which they came.

        A point stands for the steps since the one before it: a log may have every tenth only. Steps that go back begin
        anew.
        """
        first, last = int(steps[0]), int(steps[-1])
        if self._marks and first <= self._marks[-1][0]:
            self._marks = []
        before = self._marks[-1][0] if self._marks else first - 1
        covered = np.diff(steps, prepend=before)
        sound = np.isfinite(seconds) & (seconds >= 0) & (covered > 0)
        many, spent = int(covered[sound].sum()), float((covered * seconds)[sound].sum())
        if self._marks and self._marks[-1][2] < _MARK_S:
            _, past_steps, past_seconds = self._marks.pop()
            many, spent = many + past_steps, spent + past_seconds
        self._marks.append((last, many, spent))
        while sum(spent for _, _, spent in self._marks[1:]) >= _WINDOW_S:
            del self._marks[0]

    def mean(self) -> dict[str, float] | None:
        """{seconds_per_step, steps, seconds} of the window; None before three steps were timed."""
        steps, seconds = (sum(mark[part] for mark in self._marks) for part in (1, 2))
        if steps < _LEAST_STEPS or seconds <= 0:
            return None
        return {"seconds_per_step": seconds / steps, "steps": steps, "seconds": seconds}
