"""What several parts of an answer ask of the same snapshot, read once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlmodel import Session

__all__ = ["once", "remember"]

_T = TypeVar("_T")

_KEY = "floatscope_once"


def remember(session: Session) -> None:
    """``session`` sees one snapshot, and nothing changes under it."""
    session.info[_KEY] = {}


def once(session: Session, key: object, make: Callable[[], _T]) -> _T:
    """What ``make`` returned first for ``key``, where ``remember`` was called; it is not to be changed.

    Each statement hands the interpreter to whoever is busy, and gets it back after up to the switch interval.
    """
    made: dict[object, Any] | None = session.info.get(_KEY)
    if made is None:
        return make()
    if key not in made:
        made[key] = make()
    found: _T = made[key]
    return found
