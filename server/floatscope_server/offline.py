"""Reading a store without its server, or beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlmodel import Session

from floatscope_server.alerts.preview import preview
from floatscope_server.alerts.tuning import parameters_of
from floatscope_server.database import database_of
from floatscope_server.jsontext import plain
from floatscope_server.query.line import run_named
from floatscope_server.query.runs import run_list
from floatscope_server.query.series import raw_series
from floatscope_server.query.show import show
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings
from floatscope_server.store.parts import MAX_STEP

__all__ = ["judge_run", "read_run", "read_runs"]

_T = TypeVar("_T")

_CACHE_BYTES = 32 << 20


def read_runs(settings: Settings, *, archived: bool = False) -> list[dict[str, Any]]:
    """What ``GET /api/v1/runs`` answers; ``StoreError`` if ``settings`` name no store that can be read."""
    content = plain(_read(settings, lambda session: run_list(session, archived=archived)))
    assert isinstance(content, list)
    return content


def read_run(settings: Settings, name: str) -> dict[str, Any]:
    """What ``GET /api/v1/runs/NAME`` answers; ``UnknownRunError`` if there is no such run."""
    reader = TileReader(_CACHE_BYTES)
    content = plain(_read(settings, lambda session: show(session, reader, run_named(session, name))))
    assert isinstance(content, dict)
    return content


def judge_run(settings: Settings, name: str) -> dict[str, Any]:
    """The alerts that the rules in force would have raised in the present attempt of a run, ``from_step`` on, of
    tensors ``tensors_from_step`` on; and its ``series``: {name: [(step, value)]}. ``UnknownRunError`` as above."""

    def question(session: Session) -> dict[str, Any]:
        run = run_named(session, name)
        assert run.id is not None
        found = preview(session, run, parameters_of(session, run.id), last_steps=MAX_STEP)
        points = raw_series(session, run.id, None, 0, MAX_STEP)
        series = {n: list(zip(s.tolist(), v.tolist(), strict=True)) for n, (s, v) in points.items()}
        return {**found, "series": series}

    content = plain(_read(settings, question))
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
