"""JSON as training writes it: NaN and infinities bare, and whatever damage and malice make of the rest."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

__all__ = ["DECODER", "decoded", "real"]


def _shown(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names and texts can be written again: half a surrogate pair has no UTF-8."""
    return {_text(name): _text(value) if isinstance(value, str) else value for name, value in pairs}


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


DECODER = json.JSONDecoder(object_pairs_hook=_shown)
"""Takes bare NaN and Infinity. Beside ``ValueError`` it raises ``RecursionError``."""


def decoded(text: str) -> Any:  # noqa: ANN401 - JSON
    """The content of a JSON document. ``ValueError`` if it is none, or nested deeper than Python goes."""
    try:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def real(value: float) -> float:
    """A number of JSON as a double: infinite where it is beyond all of them, as 1e400 is."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)
