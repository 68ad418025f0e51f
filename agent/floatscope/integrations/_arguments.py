"""A framework's arguments as plain data, for the run's configuration."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from pathlib import PurePath

__all__ = ["of_dataclass", "plain"]

_TEXT = 16 << 10
"""Most characters of a value. More than are looked through for secrets, of which half would look like none: what is
told is cut to its length there."""
_ITEMS = 256
"""Most items of a list or a mapping: arguments may hold a whole label table."""
_DEPTH = 6


def plain(value: object, room: int = _DEPTH) -> object:
    """``value`` as what JSON holds: of anything else its type, so that nothing of the user's is called or copied."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, enum.Enum):
        return plain(value.value, room)
    if isinstance(value, str | PurePath):
        return str(value)[:_TEXT]
    if not room:
        return type(value).__name__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return of_dataclass(value, room)
    if isinstance(value, Mapping):
        return {str(key)[:_TEXT]: plain(item, room - 1) for key, item in list(value.items())[:_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, room - 1) for item in list(value)[:_ITEMS]]
    return type(value).__name__


def of_dataclass(arguments: object, room: int = _DEPTH) -> dict[str, object]:
    """The fields of an object whose class is a dataclass, in their order, without the private ones."""
    names = (field.name for field in dataclasses.fields(arguments) if not field.name.startswith("_"))  # type: ignore[arg-type]
    return {name: plain(vars(arguments).get(name), room - 1) for name in names}
