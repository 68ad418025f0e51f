"""Progress bars of tqdm, as they stand in captured output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Bar", "bars"]

_BAR = re.compile(r"\d{1,3}%\|[^|]*\|\s*(\d+)/(\d+)\s*\[(\d+:[\d:]+)<[^,\]]*(?:,\s*([\d.]+)\s?(s/it|it/s))?[^\]]*\]?")

_TRAINS = re.compile(r"\b(?:train|training|steps?)\W*:$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bar:
    """``done`` of ``total``; ``start`` and ``end`` are positions in the line. ``seconds``: for each step, smoothed by
    tqdm; None where it is not shown."""

    start: int
    end: int
    done: int
    total: int
    elapsed: float
    seconds: float | None


def bars(text: str) -> Iterator[Bar]:
    """The bars in ``text``, but for those whose description is of something else: loading, mapping, saving."""
    for found in _BAR.finditer(text):
        before = text[: found.start()].rstrip()
        if before.endswith(":") and not _TRAINS.search(before):
            continue
        done, total, clock, rate, unit = found.groups()
        seconds = None
        if rate and float(rate) > 0:
            seconds = float(rate) if unit == "s/it" else 1 / float(rate)
        elapsed = 0.0
        for part in clock.split(":"):
            elapsed = elapsed * 60 + float(part)
        yield Bar(found.start(), found.end(), int(done), int(total), elapsed, seconds)
