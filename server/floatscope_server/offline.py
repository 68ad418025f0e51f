"""Reading a store without its server, or beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlmodel import Session

from floatscope_server.database import database_of
from floatscope_server.jsontext import plain
from floatscope_server.query.line import run_named
from floatscope_server.query.runs import run_list
from floatscope_server.query.show import show
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings

__all__ = ["read_run", "read_runs"]

_T = TypeVar("_T")

_CACHE_BYTES = 32 << 20


def read_runs(settings: Settings) -> list[dict[str, Any]]:
    """What ``GET /api/v1/runs`` answers; ``StoreError`` if ``settings`` name no store that can be read."""
    content = plain(_read(settings, run_list))
    assert isinstance(content, list)
    return content


def read_run(settings: Settings, name: str) -> dict[str, Any]:
    """What ``GET /api/v1/runs/NAME`` answers; ``UnknownRunError`` if there is no such run."""
    reader = TileReader(_CACHE_BYTES)
    content = plain(_read(settings, lambda session: show(session, reader, run_named(session, name))))
    assert isinstance(content, dict)
    return content


def _read(settings: Settings, question: Callable[[Session], _T]) -> _T:
    database = database_of(settings)
    reader = database.reader()
    try:
        reader.check()
        with database.understood(), reader.session() as session:
            return question(session)
    finally:
        reader.close()
