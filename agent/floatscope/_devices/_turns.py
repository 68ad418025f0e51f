"""Whose turn it is to be read at length."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable

__all__ = ["OFTEN_S", "SELDOM_S", "Turns"]

OFTEN_S = 10.0
"""Between two readings of what slows a card down: each asks its firmware."""
SELDOM_S = 60.0
"""Between two readings of links and error counts: an AMD card has a dozen files of them, behind each a query."""


class Turns:
    """One card at a time, each no more often than every ``seconds``: however many there are, a reading of all of them
    takes no longer than that of one. The first turn of each comes as soon as nobody waits for longer."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[Hashable, float] = {}

    def take(self, cards: Iterable[Hashable]) -> Hashable | None:
        """That one of ``cards`` which is due; None when nobody is."""
        now = self._clock()
        waiting = min(cards, key=lambda card: self._last.get(card, -1.0), default=None)
        if waiting is None or now - self._last.get(waiting, -self._seconds) < self._seconds:
            return None
        self._last[waiting] = now
        return waiting
