"""JSON in which every number survives: NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from floatscope import wire

__all__ = ["Plain", "encode_json", "is_missing", "number", "plain", "plain_number", "stamp", "values_of"]


class Plain(dict[str, object]):
    """What is JSON as it is: an answer says the same of each layer again and again."""


_AS_THEY_ARE = frozenset({str, int, bool, type(None), Plain})
_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """``value`` with datetimes as ISO 8601 in UTC and numbers that JSON lacks as strings."""
    if type(value) in _AS_THEY_ARE:
        return value
    if type(value) is dict:
        # Most of an answer, and its keys are text: a tenth of the time of asking what each value is an instance of.
        return {
            key if type(key) is str else str(key): item if type(item) in _AS_THEY_ARE else plain(item)
            for key, item in value.items()
        }
    if type(value) is list:
        return [item if type(item) in _AS_THEY_ARE else plain(item) for item in value]
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, np.ndarray):
        return values_of(value)
    return value


def plain_number(value: float | None) -> float | str | None:
    """``value`` for JSON, which has no NaN and no infinity."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def stamp(at: datetime | None) -> str | None:
    """ISO 8601 in UTC, ending in Z."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def number(value: float | str) -> float:
    """The inverse of ``plain_number``."""
    return _NAMES[value] if isinstance(value, str) else value


def is_missing(values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Where a float32 array holds the payload of "not observed"."""
    missing: npt.NDArray[np.bool_] = np.ascontiguousarray(values).view(np.uint32) == wire.MISSING_BITS
    return missing


def values_of(values: npt.NDArray[Any]) -> list[Any]:
    """A numeric array as JSON lists; "not observed" is null."""
    if values.ndim > 1:
        return [values_of(row) for row in values]
    content: list[Any] = values.tolist()
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return content
    missing = is_missing(values) if values.dtype == np.float32 else np.zeros(len(values), bool)
    return [None if m else v if math.isfinite(v) else plain(v) for v, m in zip(content, missing.tolist(), strict=True)]


def encode_json(value: object) -> bytes:
    """The bytes of ``plain(value)``."""
    return msgspec.json.encode(plain(value))
