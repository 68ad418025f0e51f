"""Numbers and times as the report writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from floatscope_server.jsontext import number

__all__ = ["bits", "count", "duration", "figure", "log_ticks", "moment", "power", "share", "size", "steps_on", "ticks"]


def figure(value: float | str | None) -> str:
    """Four digits that count."""
    if value is None:
        return "–"
    x = number(value)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    return f"{x:.4g}".replace("-", "−")


def bits(value: float) -> str:
    """Headroom with one decimal, near the limit with two."""
    if not math.isfinite(value):
        return figure(value)
    return f"{value:.{1 if abs(value) >= 0.1 or value == 0 else 2}f}".replace("-", "−")


def count(value: int) -> str:
    """With commas between thousands."""
    return f"{value:,}"


def share(value: float) -> str:
    """In percent."""
    return "–" if math.isnan(value) else f"{100 * value:.3g} %"


def size(value: int | None) -> str:
    """Bytes in GiB."""
    return "–" if value is None else f"{value / 2**30:.1f} GiB"


def duration(seconds: float) -> str:
    """Two units at most."""
    seconds = int(seconds)
    for length, unit, smaller, short in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= length:
            return f"{seconds // length} {unit} {seconds % length // smaller} {short}"
    return f"{seconds} s"


def moment(text: str | None) -> str:
    """An ISO 8601 time to the second, in UTC."""
    return "–" if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC"


def power(log10: float) -> str:
    """A tick of a logarithmic axis."""
    whole = round(log10)
    if abs(log10 - whole) > 1e-9 or abs(whole) < 3:
        return figure(10**log10)
    return f"10{str(whole).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, about ``most`` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, most)
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or 1, 2 and 5 of each where they are few; ``low`` and ``high`` are log10."""
    factors = (1.0, 2.0, 5.0) if high - low < 2 else (1.0,)
    found = [
        math.log10(factor) + power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for factor in factors
        if low <= math.log10(factor) + power <= high
    ]
    return found[:: -(-len(found) // 5)] if found else [(low + high) / 2]


def steps_on(low: int, high: int) -> Iterator[int]:
    """Round steps for an axis."""
    yield from sorted({round(at) for at in ticks(low, high, 8)})
