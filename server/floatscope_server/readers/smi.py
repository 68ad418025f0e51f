"""What the tools of vendors have in common: units, missing values, JSON documents one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from floatscope_server.readers.decoded import decoded
from floatscope_server.readers.text import number as numeral

__all__ = ["GIB", "MIB", "byte_count", "documents", "quantity", "timestamp"]

MIB = 1 << 20
GIB = 1 << 30
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_MOST = 2.0**62
"""No card has that much of anything; damaged text may."""
_LATEST_S = 2.0**33
"""In the year 2242; nanoseconds of 2262 do not fit in 64 bits."""
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"?')
_CLOSE = re.compile(r"[\]}]\s*,?\s*$")
_LONGEST = 1 << 24
"""Characters of a document; the output of one call is far shorter."""


def quantity(value: Any) -> float | None:  # noqa: ANN401 - JSON
    """The number at the beginning of ``value``, whatever its unit: "39.0", "90 %", {"value": 6, "unit": "W"}. None for
    what could not be had: "N/A" in any dress, [N/A], "[Not Supported]"."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < _MOST else None
    if isinstance(value, str):
        found = _NUMBER.match(value.strip())
        return None if found is None or abs(float(found.group())) >= _MOST else float(found.group())
    return None


def timestamp(value: str) -> int:
    """Nanoseconds since 1970 of seconds since then, or of a date and a time taken as UTC; 0 where it is neither or
    before 1970."""
    text = value.strip().replace("/", "-")
    seconds = numeral(text)
    if seconds is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return 0
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return int(seconds * 1e9) if 0 <= seconds < _LATEST_S else 0


def byte_count(value: float | None, unit: int) -> int | None:
    """``value`` times ``unit`` bytes; None for what no card has."""
    if value is None or not 0 <= value * unit < _MOST:
        return None
    return round(value * unit)


def documents(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """The JSON documents in ``lines`` and the number of the line that each begins on; text between them is left out.
    None for one that does not end or is damaged."""
    held: list[str] = []
    first = length = depth = 0
    for number, text in lines:
        if not held:
            if not text.lstrip().startswith(("{", "[")):
                continue
            first, depth = number, 0
        held.append(text)
        length += len(text)
        # Brackets are counted, since to try at each of them takes the square of the length.
        bare = _TEXT.sub("", text)
        depth += bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")
        if depth > 0 and length < _LONGEST:
            continue
        try:
            found = None if depth > 0 else decoded("\n".join(held))
        except ValueError:
            found = None
        if found is not None or _CLOSE.search(text) or length >= _LONGEST:
            yield first, found
        held, length = [], 0
    if held:
        yield first, None
