"""Deleting a run: out of sight at once, and row by row after that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, select, update
from sqlmodel import Session, SQLModel, col

from floatscope_server.alerts.models import Alert, AlertEvent, Evaluated
from floatscope_server.models import (
    Attempt,
    DeviceFacts,
    DumpPart,
    Gap,
    HistTile,
    LayerRow,
    Milestone,
    RankEvent,
    Retention,
    Run,
    ScalarChunk,
    ScalarSeries,
    StepEvent,
    Stream,
    StreamState,
    Tile,
    TileRaw,
    WalFrame,
    Writer,
)
from floatscope_server.store.lifecycle import DELETED, ENDED

__all__ = ["LiveRunError", "condemn", "condemned", "remove_some"]


class LiveRunError(RuntimeError):
    """The run still goes on."""


def condemn(session: Session, name: str) -> bool:
    """Take the run ``name`` out of sight: its name is free again and what its agents still send is refused. False if
    there is none; ``LiveRunError`` unless it is over.

    What nobody but this server knows of it goes with it: its alerts, and who wrote it.
    """
    run = session.scalars(select(Run).where(col(Run.name) == name, col(Run.state) != DELETED)).one_or_none()
    if run is None:
        return False
    if run.state not in ENDED:
        raise LiveRunError(name)
    alerts = select(col(Alert.id)).where(col(Alert.run_id) == run.id)
    session.execute(delete(AlertEvent).where(col(AlertEvent.alert_id).in_(alerts)))
    for table in (Alert, Evaluated, Writer):
        session.execute(delete(table).where(col(table.run_id) == run.id))
    # No agent can have sent this name: it has a slash.
    session.execute(update(Run).where(col(Run.id) == run.id).values(state=DELETED, name=f"deleted/{run.id}"))
    return True


def condemned(session: Session) -> list[int]:
    """The runs that are being deleted."""
    return list(session.scalars(select(col(Run.id)).where(col(Run.state) == DELETED)).all())  # type: ignore[arg-type]


def remove_some(session: Session, run_id: int, rows: int) -> bool:
    """Delete up to ``rows`` rows of a run that is being deleted; whether there may be more."""
    for table, where in _parts(run_id):
        keys = list(table.primary_key)
        found = session.execute(select(*keys).where(where).limit(rows)).all()
        if not found:
            continue
        connection = session.connection()
        if len(keys) == 1:
            connection.execute(delete(table).where(keys[0].in_([row[0] for row in found])))
        else:
            for row in found:
                connection.execute(delete(table).where(*(key == value for key, value in zip(keys, row, strict=True))))
        return True
    session.execute(delete(Run).where(col(Run.id) == run_id))
    return False


def _parts(run_id: int) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """What a run consists of: each before what it refers to."""
    streams = select(col(Stream.id)).where(col(Stream.run_id) == run_id)
    series = select(col(ScalarSeries.id)).where(col(ScalarSeries.run_id) == run_id)
    for model in (WalFrame, TileRaw, Tile, HistTile, StreamState):
        of_stream: Any = model
        yield _table(model), of_stream.stream_id.in_(streams)
    yield _table(ScalarChunk), col(ScalarChunk.series_id).in_(series)
    # Again: what was under way may have been written since.
    alerts = select(col(Alert.id)).where(col(Alert.run_id) == run_id)
    yield _table(AlertEvent), col(AlertEvent.alert_id).in_(alerts)
    rest: tuple[Any, ...] = (
        Alert,
        Evaluated,
        Writer,
        ScalarSeries,
        RankEvent,
        StepEvent,
        Gap,
        DumpPart,
        DeviceFacts,
        LayerRow,
        Milestone,
        Retention,
        Stream,
        Attempt,
    )
    for model in rest:
        yield _table(model), model.run_id == run_id


def _table(model: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(model.__tablename__)]
