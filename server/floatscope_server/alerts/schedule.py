"""What becomes of a delivery after a try. Pure; the time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from floatscope_server.alerts.receivers.answer import Answer

__all__ = ["DELAYS_S", "Verdict", "decide"]

DELAYS_S = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0)
"""Seconds before each try, the first included; after the last a delivery is given up."""

_JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``state``: ok, failed (try again at ``next_at``) or dead. ``disable``: the receiver wants nothing any more."""

    state: str
    next_at: datetime | None = None
    status: int | None = None
    error: str | None = None
    disable: bool = False


def decide(tries: int, answer: Answer, now: datetime, chance: float) -> Verdict:
    """After try number ``tries`` (from 1), which ended in ``answer``.

    ``chance`` in [0, 1) spreads the next try over a fifth of its delay, never before it.
    """
    if answer.error is None:
        return Verdict(state="ok", status=answer.status)
    if answer.gone:
        return Verdict(state="dead", status=answer.status, error=answer.error, disable=True)
    if tries >= len(DELAYS_S):
        return Verdict(state="dead", status=answer.status, error=answer.error)
    delay = max(DELAYS_S[tries] * (1.0 + _JITTER * chance), answer.wait_s)
    return Verdict(state="failed", next_at=now + timedelta(seconds=delay), status=answer.status, error=answer.error)
