"""How much a store holds, and how much of it is in tiles."""

from __future__ import annotations

import time

from sqlalchemy import text

from floatscope_server.database import database_of
from floatscope_server.settings import Settings

__all__ = ["stored_bytes", "wait_until_sealed"]

_PATIENCE_S = 30.0


def _sealed(settings: Settings, run: str) -> int:
    """Steps before this one are in tiles, of every stream of layers of ``run``."""
    statement = (
        "SELECT coalesce(min(s.sealed), 0) FROM stream_state s JOIN stream t ON t.id = s.stream_id "
        "JOIN run r ON r.id = t.run_id WHERE r.name = :run AND t.name LIKE 'layer/%'"
    )
    return _number(settings, statement, run=run)


def stored_bytes(settings: Settings) -> int:
    """What the store holds, with its indexes, without pages that are free again: in PostgreSQL all tables but the tail
    as they are, and the tail's live rows."""
    if not settings.postgres:
        pages = _number(
            settings, "SELECT page_count - freelist_count FROM pragma_page_count(), pragma_freelist_count()"
        )
        return pages * _number(settings, "SELECT page_size FROM pragma_page_size()")
    tables = _number(
        settings,
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public' AND c.relname <> 'wal_frame'",
    )
    return tables + _number(settings, "SELECT coalesce(sum(length(data)), 0)::bigint FROM wal_frame")


def _number(settings: Settings, statement: str, **values: object) -> int:
    reader = database_of(settings).reader()
    try:
        with reader.session() as session:
            return int(session.execute(text(statement), values).scalar_one())
    finally:
        reader.close()


def wait_until_sealed(settings: Settings, run: str, step: int) -> int:
    """Until all tiles of ``run`` before ``step`` are sealed, or nothing more is for a while; how far it is."""
    reached, since = _sealed(settings, run), time.monotonic()
    while reached < step and time.monotonic() - since < _PATIENCE_S:
        time.sleep(0.25)
        if (now := _sealed(settings, run)) > reached:
            reached, since = now, time.monotonic()
    return reached
