"""The rows of scalar series: what is known of each, renewed with every block that has points of it."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Connection, Insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import SQLModel

from floatscope_server.models import ScalarSeries
from floatscope_server.store.ledger import KnownRun

__all__ = ["write_series"]

_KEY = ("run_id", "attempt", "rank", "stream", "name")
_RENEWED = ("n", "first_step", "last_step", "last", "min", "max", "ordered")


def write_series(connection: Connection, run: KnownRun) -> None:
    """Write what has changed of ``run.series`` since the last time."""
    if not run.renewed:
        return
    rows = [
        {
            "run_id": run.id,
            "attempt": attempt,
            "rank": rank,
            "stream": "scalar",
            "name": name,
            "n": series.n,
            "first_step": series.first_step,
            "last_step": series.last_step,
            "last": _known(series.last),
            "min": _known(series.min),
            "max": _known(series.max),
            "ordered": series.ordered,
        }
        for (attempt, rank, name), series in run.renewed.items()
    ]
    connection.execute(_statement(connection.dialect.name), rows)
    run.renewed.clear()


@cache
def _statement(engine: str) -> Insert:
    # Made once: that takes twice as long as to run it.
    table = SQLModel.metadata.tables[str(ScalarSeries.__tablename__)]
    statement = postgresql.insert(table) if engine == "postgresql" else sqlite.insert(table)
    return statement.on_conflict_do_update(
        index_elements=_KEY, set_={name: statement.excluded[name] for name in _RENEWED}
    )


def _known(figure: float) -> float | None:
    """NULL for a NaN, which SQLite makes of it anyhow."""
    return None if figure != figure else figure
