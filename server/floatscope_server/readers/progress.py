"""Progress bars of tqdm, as they stand in captured output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from floatscope_server.readers.text import number, step_of, whole

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
        if step_of(whole(done)) is None:
            continue
        seconds = None
        shown = number(rate or "")
        if shown:
            seconds = shown if unit == "s/it" else 1 / shown
        elapsed = 0.0
        for part in clock.split(":"):
            elapsed = elapsed * 60 + (number(part) or 0.0)
        yield Bar(found.start(), found.end(), whole(done), whole(total), elapsed, seconds)
