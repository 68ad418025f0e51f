"""How long what failed is let alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["AT_MOST_S", "FIRST_S", "Pauses", "doubled"]

_K = TypeVar("_K")

FIRST_S = 1.0
AT_MOST_S = 60.0


def doubled(seconds: float) -> float:
    """The next pause after one of ``seconds``, 0 after none."""
    return min(2 * seconds, AT_MOST_S) if seconds else FIRST_S


class Pauses(Generic[_K]):
    """By key: 1 s after the first failure, twice as long after each that follows, up to a minute."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pauses: dict[_K, tuple[float, float]] = {}

    def begin(self, key: _K) -> float:
        """``key`` has failed; for how many seconds it is to be let alone."""
        _, before = self._pauses.get(key, (0.0, 0.0))
        seconds = doubled(before)
        self._pauses[key] = self._monotonic() + seconds, seconds
        return seconds

    def paused(self, key: _K) -> bool:
        """Whether it is to be let alone now."""
        return key in self._pauses and self._monotonic() < self._pauses[key][0]

    def end(self, key: _K) -> None:
        """``key`` has done it."""
        self._pauses.pop(key, None)
