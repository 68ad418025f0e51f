"""What the tools of vendors have in common: units, missing values, JSON documents one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

__all__ = ["GIB", "MIB", "documents", "quantity", "timestamp"]

MIB = 1 << 20
GIB = 1 << 30
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_MOST = 2.0**62
"""No card has that much of anything; damaged text may."""
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
    """Nanoseconds since 1970 of seconds since then, or of a date and a time taken as UTC; 0 where it is neither."""
    text = value.strip().replace("/", "-")
    try:
        return int(float(text) * 1e9)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e9)


def documents(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """The JSON documents in ``lines`` and the number of the line that each begins on; text between them is left out.
    None for one that does not end or is damaged."""
    held: list[str] = []
    first = length = 0
    for number, text in lines:
        if not held:
            if not text.lstrip().startswith(("{", "[")):
                continue
            first = number
        held.append(text)
        length += len(text)
        if _CLOSE.search(text):
            try:
                yield first, json.loads("\n".join(held))
            except ValueError:
                if length < _LONGEST:
                    continue
                yield first, None
            held, length = [], 0
    if held:
        yield first, None
