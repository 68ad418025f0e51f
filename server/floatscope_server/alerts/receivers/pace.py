"""How often a receiver may be written to: a token bucket. The time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["Bucket", "Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """At most ``burst`` + ``per_s`` x t messages in any t seconds."""

    burst: float
    per_s: float


class Bucket:
    """Messages that may be sent now. It begins with a single one, since what was sent before a restart is not known."""

    def __init__(self, pace: Pace, now: datetime) -> None:
        self._pace = pace
        self._level = 1.0
        self._at = now
        self._held = now

    def level(self, now: datetime) -> float:
        """Messages that may be sent at ``now``, at most the burst; none while it is held."""
        if now < self._held:
            return 0.0
        passed = max((now - self._at).total_seconds(), 0.0)  # clocks are set back
        return min(self._level + passed * self._pace.per_s, self._pace.burst)

    def take(self, now: datetime) -> None:
        """One is sent."""
        self._level, self._at = self.level(now) - 1.0, now

    def hold(self, until: datetime) -> None:
        """The receiver wants none before ``until``; then a single one."""
        self._level, self._at, self._held = 1.0, until, until
