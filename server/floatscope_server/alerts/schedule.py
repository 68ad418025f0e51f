"""What becomes of a delivery after a try. Pure; the time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from floatscope_server.alerts.connect import Reply

__all__ = ["DELAYS_S", "Verdict", "decide", "retry_after_s"]

DELAYS_S = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0)
"""Seconds before each try, the first included; after the last a delivery is given up."""

_JITTER = 0.2
_LONGEST_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``state``: ok, failed (try again at ``next_at``) or dead. ``disable``: the receiver wants nothing any more."""

    state: str
    next_at: datetime | None = None
    status: int | None = None
    error: str | None = None
    disable: bool = False


def retry_after_s(header: str | None, now: datetime) -> float:
    """Seconds that a ``Retry-After`` header asks for, in either of its forms, a day at most; 0 without a sound one."""
    if header is None:
        return 0.0
    text = header.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), _LONGEST_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0  # what the parser of dates raises for junk is not said
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return min(max((at - now).total_seconds(), 0.0), _LONGEST_S)


def decide(tries: int, answer: Reply | str, now: datetime, chance: float) -> Verdict:
    """After try number ``tries`` (from 1): ``answer`` is the receiver's or the text of what went wrong before one came.

    ``chance`` in [0, 1) spreads the next try over a fifth of its delay, never before it.
    """
    if isinstance(answer, Reply):
        if 200 <= answer.status < 300:
            return Verdict(state="ok", status=answer.status)
        if answer.status == 410:
            return Verdict(state="dead", status=410, error="the receiver answered 410 Gone", disable=True)
        redirected = 300 <= answer.status < 400
        error = f"the receiver answered {answer.status}" + ("; redirects are not followed" if redirected else "")
        status, wish = answer.status, retry_after_s(answer.retry_after, now)
    else:
        error, status, wish = answer, None, 0.0
    if tries >= len(DELAYS_S):
        return Verdict(state="dead", status=status, error=error)
    delay = max(DELAYS_S[tries] * (1.0 + _JITTER * chance), wish)
    return Verdict(state="failed", next_at=now + timedelta(seconds=delay), status=status, error=error)
