"""Reading a data folder without its server, or beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlmodel import Session

from floatscope_server.database import Reader, understood
from floatscope_server.jsontext import plain
from floatscope_server.query.line import run_named
from floatscope_server.query.runs import run_list
from floatscope_server.query.show import show
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings

__all__ = ["read_run", "read_runs"]

_T = TypeVar("_T")

_CACHE_BYTES = 32 << 20


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """What ``GET /api/v1/runs`` answers; ``StoreError`` if ``folder`` holds no store that can be read."""
    content = plain(_read(folder, run_list))
    assert isinstance(content, list)
    return content


def read_run(folder: Path, name: str) -> dict[str, Any]:
    """What ``GET /api/v1/runs/NAME`` answers; ``UnknownRunError`` if there is no such run."""
    content = plain(_read(folder, lambda session: show(session, TileReader(_CACHE_BYTES), run_named(session, name))))
    assert isinstance(content, dict)
    return content


def _read(folder: Path, question: Callable[[Session], _T]) -> _T:
    path = Settings(data=folder).database
    reader = Reader(path)
    try:
        reader.check(path)
        with understood(path), reader.session() as session:
            return question(session)
    finally:
        reader.close()
