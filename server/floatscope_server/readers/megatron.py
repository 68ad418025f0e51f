"""Iteration lines of Megatron, Megatron-DeepSpeed and AMD's Primus."""

from __future__ import annotations

import re

from floatscope_server.readers.text import number, whole

__all__ = ["Scaled", "iteration", "rank_of", "validation"]

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_VALIDATION = re.compile(r"validation loss at iteration (\d+)[^|]*\|(.*)")
_RANK = re.compile(r"\[rank-(\d+)/\d+\]")
_UNIT = re.compile(r"(?:[KMGT]i?B|%|ms|s)$")


def rank_of(text: str) -> int | None:
    """The rank that Primus prints before a line."""
    found = _RANK.search(text)
    return None if found is None else whole(found[1])


def _fields(text: str) -> dict[str, float]:
    """Fields between bars. One with several values "a/b" has as many names in "x/y", or is the newest one and a mean,
    named with " avg" behind."""
    values: dict[str, float] = {}
    for part in text.split("|"):
        name, colon, content = part.strip().rpartition(":")
        name = name.strip()
        if not colon or not name:
            continue
        if "/" not in content:
            value = _value(content)
            if value is not None:
                values[name] = value
            continue
        numbers = [_value(piece) for piece in content.split("/")]
        if len(names := _names(name)) != len(numbers):
            names = [name, f"{name} avg"]
        values |= {n: value for n, value in zip(names, numbers, strict=False) if value is not None}
    return values


def _value(text: str) -> float | None:
    text = text.strip()
    return number(text if text[-1:].isdigit() else _UNIT.sub("", text))


def _names(name: str) -> list[str]:
    """``hip mem usage/free/total`` -> ``hip mem usage``, ``hip mem free``, ``hip mem total``."""
    first, *others = name.split("/")
    stem, _, _ = first.rpartition(" ")
    return [first, *(f"{stem} {other}" for other in others)]


def iteration(text: str) -> tuple[int, dict[str, float]] | None:
    """The iteration of a line and its fields; what is absent (no loss scale under bf16, no loss on a skipped step) is
    absent."""
    found = _ITERATION.search(text)
    return None if found is None else (whole(found[1]), _fields(found[2]))


def validation(text: str) -> tuple[int, dict[str, float]] | None:
    """The iteration of a validation line and its values, as ``validation lm loss``."""
    found = _VALIDATION.search(text)
    if found is None:
        return None
    return whole(found[1]), {f"validation {n.removesuffix(' value')}": v for n, v in _fields(found[2]).items()}


class Scaled:
    """Whether this log prints its grad norm times the loss scale, as old Megatron-DeepSpeed does.

    Decided at the first record with a loss scale: a norm in the thousands that is no less than a thousandth of the
    scale. It is withdrawn if a later one would be absurdly small.
    """

    _FROM_SCALE = 64.0
    _NORM = 1000.0
    _SHARE = 1e-3
    _ABSURD = 1e-4

    def __init__(self) -> None:
        self._scaled: bool | None = None

    def unscale(self, norm: float, scale: float | None) -> float:
        """``norm`` without the loss scale."""
        if scale is None or scale <= 0 or not norm > 0:
            return norm
        if self._scaled is None and scale >= self._FROM_SCALE:
            self._scaled = norm >= max(self._NORM, scale * self._SHARE)
        elif self._scaled and scale >= self._FROM_SCALE and norm < scale * self._ABSURD:
            self._scaled = False
        return norm / scale if self._scaled else norm
