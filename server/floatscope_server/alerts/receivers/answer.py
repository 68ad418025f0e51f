"""What a receiver's reply means. Several chats answer errors with status 200 and a code in the body."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from floatscope_server.alerts.connect import Reply
from floatscope_server.alerts.receivers.text import clean, fit

__all__ = ["Answer", "coded", "plain", "retry_after_s", "said"]

_LONGEST_S = 86400.0
_SAID = 200
_CODES = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``error`` is None when the message was taken. ``wait_s``: the receiver wants nothing for so long. ``gone``: it
    wants nothing any more."""

    status: int | None = None
    error: str | None = None
    wait_s: float = 0.0
    gone: bool = False


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


def said(reply: Reply) -> Mapping[str, Any]:
    """The JSON object of a reply; empty where it is none."""
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def seconds(value: object) -> float:
    """A number of seconds out of a reply, a day at most; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0.0
    return float(value) if value < _LONGEST_S else _LONGEST_S


def plain(reply: Reply, now: datetime, *, quote: bool = False) -> Answer:
    """Judged by the status alone; ``quote`` adds the beginning of the body to the error."""
    status = reply.status
    if 200 <= status < 300:
        return Answer(status=status)
    if status == 410:
        return Answer(status=status, error="the receiver answered 410 Gone", gone=True)
    error = f"the receiver answered {status}"
    if 300 <= status < 400:
        error += "; redirects are not followed"
    elif quote and (text := clean(reply.body.decode("utf-8", "replace"))):
        error += f": {fit(text, _SAID)}"
    return Answer(status=status, error=error, wait_s=retry_after_s(reply.headers.get("retry-after"), now))


def coded(
    reply: Reply, now: datetime, *, code: str, text: str, busy: Mapping[int, float], gone: Collection[int]
) -> Answer:
    """Judged by the number ``code`` in the body, 0 when all is well, with its explanation in ``text``.

    ``busy``: codes of a receiver that has had too much, with the seconds it then wants; ``gone``: codes of one that is
    no longer there.
    """
    by_status = plain(reply, now, quote=True)
    found = said(reply)
    number = found.get(code)
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) >= _CODES:
        if by_status.error is not None:
            return by_status
        return Answer(status=reply.status, error=f"the receiver answered {reply.status} without {code}")
    if number == 0 and by_status.error is None:
        return by_status
    error = f"the receiver answered {reply.status}, {code} {number}: {fit(clean(str(found.get(text, ''))), _SAID)}"
    reset = reply.headers.get("x-ogw-ratelimit-reset", "")
    asked = seconds(int(reset[:9])) if reset.isascii() and reset.isdecimal() else 0.0
    wait = max(by_status.wait_s, asked, busy.get(number, 0.0))
    return Answer(status=reply.status, error=error, wait_s=wait, gone=number in gone or by_status.gone)
