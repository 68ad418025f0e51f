"""Statements of retention: what a run holds, how old it is, and how it goes, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, insert, literal, select, update
from sqlalchemy.orm import aliased
from sqlmodel import Session, SQLModel, col

from floatscope_server.alerts.models import Alert
from floatscope_server.models import (
    Attempt,
    HistTile,
    Milestone,
    Retention,
    ScalarChunk,
    ScalarSeries,
    Stream,
    StreamState,
    Tile,
    TileRaw,
)
from floatscope_server.store.due import layers_of
from floatscope_server.store.retention import Ages, Alarm, Held, going, pins
from floatscope_server.store.shapes import DEVICES, HISTOGRAM_SHAPE
from floatscope_server.store.tilestore import delete_place, geometry_of, outdate
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.statistics import Stat

__all__ = [
    "ROWS",
    "ages_of",
    "delete_rows",
    "drop_tiles",
    "keeping_of",
    "old_histograms",
    "old_readings",
    "plan",
    "progress",
    "set_keeping",
]

ROWS = 100
"""Rows that one transaction deletes, some milliseconds: acknowledgements wait for as long."""

_MANY = (int(Stat.COUNT), int(Stat.ABSMAX), int(Stat.STEPS), int(Stat.LOG2_AMAX))
"""Statistics that a tile has wherever anything was observed; of two one may have been damaged."""


def keeping_of(session: Session, run_id: int) -> Retention:
    """What holds for the run: its own row, that of all runs, or what is built in."""
    return session.get(Retention, run_id) or session.get(Retention, 0) or Retention(run_id=0)


def set_keeping(session: Session, run_id: int, values: Mapping[str, Any]) -> None:
    """Give the run, or all for 0, these ``values``."""
    connection = session.connection()
    connection.execute(delete(Retention).where(col(Retention.run_id) == run_id))
    # Not as an object: for a None in one the column's default is written.
    connection.execute(insert(Retention), [{**values, "run_id": run_id}])
    session.expire_all()


def progress(session: Session, run_id: int, now: datetime) -> list[Milestone]:
    """How far each attempt is that has gone on since it was last noted; what arrives from now on is younger."""
    newest = (
        select(col(Milestone.attempt), func.max(Milestone.step))
        .where(col(Milestone.run_id) == run_id)
        .group_by(col(Milestone.attempt))
    )
    noted: dict[int, int] = {row[0]: row[1] for row in session.execute(newest)}
    return [
        # Of what was over before anybody looked the end is known.
        Milestone(run_id=run_id, attempt=attempt.n, step=attempt.last_step, at=min(now, attempt.ended_at or now))
        for attempt in session.scalars(select(Attempt).where(col(Attempt.run_id) == run_id)).all()
        if attempt.last_step is not None and attempt.last_step > noted.get(attempt.n, -1)
    ]


def plan(session: Session, run_id: int, keeping: Retention, now: datetime) -> list[Held]:
    """The tiles of summaries that go."""
    geometries: dict[int, Geometry] = {}
    held: list[Held] = []
    sizes = keeping.max_bytes_per_run is not None
    streams = session.scalars(
        select(Stream).where(col(Stream.run_id) == run_id, col(Stream.name).like("layer/%"))
    ).all()
    for stream in streams:
        geometry = geometry_of(stream)
        if geometry is None or stream.id is None:
            continue
        geometries[stream.id] = geometry
        states = session.scalars(select(StreamState).where(col(StreamState.stream_id) == stream.id)).all()
        for state in states:
            held += _held(session, state, geometry, sizes=sizes)
    if not held:
        return []
    alarms = session.execute(
        select(col(Alert.attempt), col(Alert.first_step), col(Alert.last_step)).where(
            col(Alert.run_id) == run_id, col(Alert.state) != "pending"
        )
    )
    return going(
        keeping,
        held,
        geometries=geometries,
        ages=ages_of(session, run_id, now),
        pinned=pins(Alarm(*alarm) for alarm in alarms),
        nbytes=_nbytes(session, run_id) if sizes else 0,
    )


def drop_tiles(session: Session, run_id: int, tiles: Sequence[Held]) -> int:
    """Delete ``tiles``, all of one stream, attempt and level, and say from where on there still are some; how many rows
    that were."""
    first = tiles[0]
    known = session.get(Stream, first.stream)
    geometry = None if known is None else geometry_of(known)
    assert geometry is not None
    blocks = range(-(-layers_of(session, run_id) // geometry.block))
    connection = session.connection()
    rows = 0
    for tile in tiles:
        rows += delete_place(connection, first.stream, first.attempt, first.level, blocks, tile.idx)
    end = max(tile.end for tile in tiles)
    column = col(StreamState.level1_from if first.level else StreamState.raw_from)
    of_state = col(StreamState.stream_id) == first.stream, col(StreamState.attempt) == first.attempt
    before = connection.execute(select(column).where(*of_state)).scalar_one()
    connection.execute(
        update(StreamState).where(*of_state).values({column: max(before, end), "epoch": StreamState.epoch + 1})
    )
    return rows


def old_histograms(session: Session, run_id: int, keeping: Retention, ages: Ages) -> list[int]:
    """Some rows of ``hist_tile`` that go. Those of level 0 of which there are no sums are kept as long as sums."""
    streams = select(col(Stream.id)).where(col(Stream.run_id) == run_id, col(Stream.name).like("hist/%"))
    sums = aliased(HistTile)
    has_sums = exists().where(
        col(sums.stream_id) == col(HistTile.stream_id),
        col(sums.attempt) == col(HistTile.attempt),
        col(sums.block) == col(HistTile.block),
        col(sums.level) == 1,
        col(sums.last_step) > col(HistTile.last_step) - HISTOGRAM_SHAPE.cell(1),
    )
    for days, which in (
        (keeping.hist_keep_days, (col(HistTile.level) == 0) & has_sums),
        (keeping.hist_level1_keep_days, col(HistTile.level) >= 0),
    ):
        for attempt, end in ({} if days is None else ages.before(days)).items():
            in_attempt = col(HistTile.stream_id).in_(streams), col(HistTile.attempt) == attempt
            found = _some(session, HistTile, *in_attempt, which, col(HistTile.last_step) < end)
            if found:
                return found
    return []


def old_readings(session: Session, run_id: int, keeping: Retention, now: datetime) -> list[int]:
    """Some rows of ``scalar_chunk`` with device figures, which go by milliseconds, that go: those of which there is
    something coarser."""
    series = select(col(ScalarSeries.id)).where(col(ScalarSeries.run_id) == run_id, col(ScalarSeries.stream) == "gpu")
    coarser = aliased(ScalarChunk)
    for days, level in ((keeping.gpu_keep_days, 0), (keeping.gpu_level1_keep_days, 1)):
        if days is None:
            continue
        end = round((now.timestamp() - 86400 * days) * 1e3)
        covered = exists().where(
            col(coarser.series_id) == col(ScalarChunk.series_id),
            col(coarser.level) == level + 1,
            col(coarser.last_step) > col(ScalarChunk.last_step) - DEVICES.cell(level + 1),
        )
        of_level = col(ScalarChunk.series_id).in_(series), col(ScalarChunk.level) == level
        found = _some(session, ScalarChunk, *of_level, covered, col(ScalarChunk.last_step) < end)
        if found:
            return found
    return []


def ages_of(session: Session, run_id: int, now: datetime) -> Ages:
    """From what was noted of the run."""
    return Ages(session.scalars(select(Milestone).where(col(Milestone.run_id) == run_id)).all(), now)


def delete_rows(session: Session, table: type[SQLModel], ids: Sequence[int]) -> None:
    """Those rows of ``table``. Answers that were made of histograms are out of date then."""
    if table is HistTile:
        of_rows = select(col(HistTile.stream_id)).where(col(HistTile.id).in_(list(ids)))
        outdate(session.connection(), col(StreamState.stream_id).in_(of_rows))
    column = SQLModel.metadata.tables[str(table.__tablename__)].c.id
    session.connection().execute(delete(table).where(column.in_(list(ids))))


def _some(session: Session, table: type[SQLModel], *where: ColumnElement[bool]) -> list[int]:
    column = SQLModel.metadata.tables[str(table.__tablename__)].c.id
    return list(session.scalars(select(column).where(*where).limit(ROWS)).all())


def _held(session: Session, state: StreamState, geometry: Geometry, *, sizes: bool) -> Iterator[Held]:
    for level, table in ((0, TileRaw), (1, Tile)):
        span = geometry.span(level)
        of_table: Any = table
        where = [
            of_table.stream_id == state.stream_id,
            of_table.attempt == state.attempt,
            # Beyond these there may be rows of what is being sealed.
            of_table.idx < geometry.full_tiles(level, state.sealed),
        ]
        if level:
            where += [of_table.level == 1, of_table.part == 0]
        if sizes:
            query = select(of_table.idx, func.sum(func.length(of_table.data))).where(*where).group_by(of_table.idx)
        else:
            query = select(of_table.idx, literal(0)).where(*where, of_table.stat.in_(_MANY)).distinct()
        for idx, nbytes in session.execute(query):
            yield Held(
                stream=state.stream_id,
                attempt=state.attempt,
                level=level,
                idx=idx,
                first=idx * span,
                end=(idx + 1) * span,
                nbytes=int(nbytes),
            )


def _nbytes(session: Session, run_id: int) -> int:
    """What is sealed of a run."""
    total = 0
    series = select(col(ScalarSeries.id)).where(col(ScalarSeries.run_id) == run_id)
    streams = select(col(Stream.id)).where(col(Stream.run_id) == run_id)
    for data, where in (
        (TileRaw.data, col(TileRaw.stream_id).in_(streams)),
        (Tile.data, col(Tile.stream_id).in_(streams)),
        (HistTile.data, col(HistTile.stream_id).in_(streams)),
        (ScalarChunk.data, col(ScalarChunk.series_id).in_(series)),
    ):
        total += int(session.execute(select(func.sum(func.length(data))).where(where)).scalar() or 0)
    return total
