"""Moves scalars, device samples and histograms from the open tail into chunks.

Three steps: ``due`` finds what can be moved, ``prepare`` reads and encodes, both on a snapshot; ``commit`` writes it in
one transaction, in the writer thread, if nothing was moved meanwhile. A frame is in the tail until the transaction that
writes its points has deleted it: after a crash it is there or they are, never both and never neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import bindparam, case, delete, insert, update
from sqlalchemy import select as select_columns
from sqlmodel import Session, SQLModel, col, func, or_, select

from floatscope import wire
from floatscope_server.models import Gap, HistTile, Run, ScalarChunk, ScalarSeries, Stream, StreamState, WalFrame
from floatscope_server.observation import ALL_RANKS
from floatscope_server.query.ranks import reach_of
from floatscope_server.store.framed import devices_of, histograms_of, scalars_of
from floatscope_server.store.hist_merge import merge_histograms
from floatscope_server.store.lifecycle import ENDED
from floatscope_server.store.present import concerns
from floatscope_server.store.pyramid import Changes, Piece, grow, whole_from
from floatscope_server.store.shapes import HISTOGRAM_BLOCK, HISTOGRAM_SHAPE, figures_of, series_shape
from floatscope_server.store.tail import Tail, aligned, free_devices, free_frames, is_over, kept_from, tail_of
from floatscope_server.tiles.hist import HistRows
from floatscope_server.tiles.points import Points

__all__ = ["Due", "MovedError", "Prepared", "commit", "due", "prepare"]

_FRAMES = 512
"""Frames that make it worth while to write the last chunk of every series anew."""
_STEPS = 4096
_MOST_FRAMES = 4096
_MOST_BYTES = 16 << 20
_HISTOGRAM_FRAMES = 64
"""About 100 kB each with 300 layers."""
_BATCH = 400
"""Values in one IN list."""

_MILLISECOND = 1_000_000

_Entries = TypeVar("_Entries", Points, HistRows)


class MovedError(RuntimeError):
    """Somebody else has sealed the stream since it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Frames of one stream and attempt that can be sealed, as of ``epoch``."""

    run_id: int
    stream_id: int
    stream: str
    attempt: int
    epoch: int
    frames: tuple[int, ...]
    complete_to: int | None


@dataclass(frozen=True, slots=True)
class _Rows:
    """Chunks that go, and those that come, without what says whose they are."""

    removed: list[int]
    added: list[dict[str, Any]]

    @classmethod
    def of(cls, changes: Changes) -> _Rows:
        return cls(
            changes.removed,
            [
                {
                    "level": level,
                    "first_step": piece.first,
                    "last_step": piece.last,
                    "n": piece.n,
                    "data": piece.entries.encoded(),
                }
                for level, piece in changes.added
            ],
        )


@dataclass(slots=True, kw_only=True)
class _Series:
    """A series and its new points; ``id`` is None until it is stored."""

    id: int | None
    rank: int
    name: str
    figures: dict[str, Any]
    rows: _Rows


@dataclass(slots=True, kw_only=True)
class Prepared:
    """What ``commit`` writes."""

    due: Due
    sealed: int
    series: list[_Series] = field(default_factory=list)
    blocks: list[tuple[int, _Rows]] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    """For frames that cannot be read, and what came for steps of which single ones are not kept any more."""


def due(session: Session, now: float, *, late: bool = True, everything: bool = False) -> list[Due]:
    """What is worth sealing at ``now`` (seconds since 1970); with ``everything`` also what is little or kept for a
    restart.

    ``late``: also the few frames that came for steps that are sealed.
    """
    found: list[Due] = []
    tails = session.execute(
        select_columns(
            col(WalFrame.stream_id),
            col(WalFrame.attempt),
            func.count().label("n"),
            func.min(WalFrame.first).label("first"),
            func.max(col(WalFrame.first) + col(WalFrame.n)).label("end"),
        ).group_by(col(WalFrame.stream_id), col(WalFrame.attempt))
    ).all()
    for tail in tails:
        stream = session.exec(
            select(Stream).where(
                Stream.id == tail.stream_id,
                or_(col(Stream.name).in_(("scalar", "gpu")), col(Stream.name).startswith("hist/")),
            )
        ).one_or_none()
        if stream is None:
            continue
        state = session.get(StreamState, (tail.stream_id, tail.attempt))
        run = session.get(Run, stream.run_id)
        assert state is not None, "a stream has its state before its first frame"
        assert run is not None
        enough = _HISTOGRAM_FRAMES if stream.name.startswith("hist/") else _FRAMES
        any_number = everything or run.state in ENDED or tail.attempt != run.attempt
        any_number = any_number or (late and tail.first < state.sealed)
        if any_number or tail.n >= enough or tail.end - tail.first >= _STEPS:
            free = _free(session, run, stream, state, now, everything=everything)
            if len(free.id) and (any_number or len(free.id) >= enough or np.ptp(free.end) >= _STEPS):
                found.append(
                    Due(
                        run_id=stream.run_id,
                        stream_id=state.stream_id,
                        stream=stream.name,
                        attempt=state.attempt,
                        epoch=state.epoch,
                        frames=tuple(free.id.tolist()),
                        complete_to=reach_of(session, run, state.attempt).complete_to,
                    )
                )
    return found


def _free(session: Session, run: Run, stream: Stream, state: StreamState, now: float, *, everything: bool) -> Tail:
    tail = tail_of(session, state.stream_id, state.attempt)
    if stream.name == "gpu":
        keeps = not (everything or is_over(run, now))
        return tail.take(free_devices(tail) if keeps else slice(None)).take(slice(_MOST_FRAMES))
    is_histogram = stream.name.startswith("hist/")
    keep = kept_from(session, run, state.attempt, now, together=is_histogram, replayed=not everything)
    if is_histogram:
        return tail.take(aligned(tail, keep, 4 * _HISTOGRAM_FRAMES))
    return tail.take(free_frames(tail, keep)).take(slice(_MOST_FRAMES))


def prepare(session: Session, item: Due) -> Prepared:
    """Read the frames of ``item`` and encode what they hold. What is too much for one transaction is left for later."""
    if item.stream.startswith("hist/"):
        return _histograms(session, item)
    points: dict[tuple[int, str], list[Points]] = {}
    newest: dict[tuple[int, str], int] = {}
    taken: list[int] = []
    end = size = 0
    damaged: list[Any] = []
    for row in _frames(session, item.frames):
        found = _points(item.stream, row.data)
        if found is None:
            damaged.append(row)
        for name, part in found or ():
            points.setdefault((row.rank, name), []).append(part)
            newest[row.rank, name] = int(part.steps[-1])
        taken.append(row.id)
        end = max(end, row.first + row.n)
        size += len(row.data)
        if size > _MOST_BYTES:
            break
    prepared = Prepared(due=_with(item, taken), sealed=end, gaps=_gaps(item, damaged))
    known = {
        (series.rank, series.name): series
        for series in session.exec(
            select(ScalarSeries).where(
                ScalarSeries.run_id == item.run_id,
                ScalarSeries.attempt == item.attempt,
                ScalarSeries.stream == item.stream,
            )
        )
        if (series.rank, series.name) in points
    }
    levels = _levels(session, [series.id for series in known.values() if series.id is not None])
    shape = series_shape(item.stream)
    for (rank, name), parts in points.items():
        series = known.get((rank, name))
        number = None if series is None else series.id
        of_series = levels.get(number or 0, {})
        new = _in_time(prepared, rank, Points.joined(parts), whole_from(of_series, shape))
        if not len(new.steps):
            continue
        changes = grow(of_series, new, shape, lambda chunk: _data(session, ScalarChunk, chunk))
        figures: dict[str, Any] = {"sealed": of_series[0][-1].last + 1}
        if item.stream == "gpu" or series is None:
            figures |= {
                "n": sum(piece.n for piece in of_series[0]),
                "first_step": of_series[0][0].first,
                "last_step": newest[rank, name],
                "ordered": False,
            }
        prepared.series.append(_Series(id=number, rank=rank, name=name, figures=figures, rows=_Rows.of(changes)))
    return prepared


def _with(item: Due, frames: Sequence[int]) -> Due:
    return Due(
        run_id=item.run_id,
        stream_id=item.stream_id,
        stream=item.stream,
        attempt=item.attempt,
        epoch=item.epoch,
        frames=tuple(frames),
        complete_to=item.complete_to,
    )


def _frames(session: Session, ids: Sequence[int]) -> Iterator[Any]:
    for some in _batches(ids):
        yield from session.execute(
            select_columns(
                col(WalFrame.id), col(WalFrame.first), col(WalFrame.n), col(WalFrame.rank), col(WalFrame.data)
            )
            .where(col(WalFrame.id).in_(some))
            .order_by(col(WalFrame.id))
        )


def _points(stream: str, data: bytes) -> Iterator[tuple[str, Points]] | None:
    """None if it is damaged."""
    if stream == "gpu":
        devices = devices_of(data)
        return None if devices is None else _gpu_points(devices)
    scalars = scalars_of(data)
    return None if scalars is None else _scalar_points(scalars)


def _gaps(item: Due, damaged: Sequence[Any]) -> list[dict[str, Any]]:
    """One row for each rank. Frames of ``gpu`` go by seconds, and have no steps to name."""
    found: list[dict[str, Any]] = []
    for rank in sorted({row.rank for row in damaged}):
        mine = [row for row in damaged if row.rank == rank]
        steps = item.stream != "gpu"
        found.append(
            {
                "run_id": item.run_id,
                "rank": rank,
                "first": min(row.first for row in mine) if steps else 0,
                "last": max(row.first + row.n - 1 for row in mine) if steps else 0,
                "count": len(mine),
                "reason": f"a stored frame of {item.stream} was damaged",
            }
        )
    return found


def _in_time(prepared: Prepared, rank: int, new: _Entries, kept: int) -> _Entries:
    """``new`` from step ``kept`` on; the rest is declared. Entries of ``gpu`` go by milliseconds."""
    late = new.steps < kept
    if not late.any():
        return new
    item, steps = prepared.due, new.steps[late]
    by_steps = item.stream != "gpu"
    prepared.gaps.append(
        {
            "run_id": item.run_id,
            "rank": rank,
            "first": int(steps[0]) if by_steps else 0,
            "last": int(steps[-1]) if by_steps else 0,
            "count": len(steps),
            "reason": f"{item.stream}: late for steps that are not kept one by one any more",
        }
    )
    return new.take(~late)


def _scalar_points(scalars: Iterable[wire.Scalars]) -> Iterator[tuple[str, Points]]:
    for series in scalars:
        yield series.name, Points(np.frombuffer(series.steps, "<i8"), np.frombuffer(series.values, "<f8"))


def _gpu_points(devices: Iterable[wire.Device]) -> Iterator[tuple[str, Points]]:
    for device in devices:
        at = np.array([device.time_ns // _MILLISECOND], np.int64)
        for figure, value in figures_of(device):
            yield f"{device.backend}/{device.index}/{figure}", Points(at, np.array([value], np.float64))


def _levels(session: Session, series: Sequence[int]) -> dict[int, dict[int, list[Piece]]]:
    found: dict[int, dict[int, list[Piece]]] = {}
    for some in _batches(series):
        rows = session.execute(
            select_columns(
                col(ScalarChunk.id),
                col(ScalarChunk.series_id),
                col(ScalarChunk.level),
                col(ScalarChunk.first_step),
                col(ScalarChunk.last_step),
                col(ScalarChunk.n),
            )
            .where(col(ScalarChunk.series_id).in_(some))
            .order_by(col(ScalarChunk.series_id), col(ScalarChunk.level), col(ScalarChunk.first_step))
        )
        for number, of, level, first, last, n in rows:
            pieces = found.setdefault(of, {}).setdefault(level, [])
            pieces.append(Piece(id=number, first=first, last=last, n=n))
    return found


def _data(session: Session, table: type[ScalarChunk] | type[HistTile], number: int) -> bytes:
    data: bytes = session.execute(select(col(table.data)).where(col(table.id) == number)).scalar_one()
    return data


def _histograms(session: Session, item: Due) -> Prepared:
    frames = list(_frames(session, item.frames))
    parts = [(row, histograms_of(row.data)) for row in frames]
    rows = merge_histograms(((row.rank, part) for row, part in parts if part is not None), item.complete_to)
    prepared = Prepared(
        due=item,
        sealed=max(row.first + row.n for row in frames),
        gaps=_gaps(item, [row for row, part in parts if part is None]),
    )
    blocks = rows.layer // HISTOGRAM_BLOCK
    for block in np.unique(blocks).tolist():
        levels: dict[int, list[Piece]] = {}
        for row in session.execute(
            select_columns(
                col(HistTile.id),
                col(HistTile.level),
                col(HistTile.first_step),
                col(HistTile.last_step),
                col(HistTile.n),
            )
            .where(
                col(HistTile.stream_id) == item.stream_id,
                col(HistTile.attempt) == item.attempt,
                col(HistTile.block) == block,
            )
            .order_by(col(HistTile.level), col(HistTile.first_step))
        ):
            levels.setdefault(row[1], []).append(Piece(id=row[0], first=row[2], last=row[3], n=row[4]))
        new = _in_time(prepared, ALL_RANKS, rows.take(blocks == block), whole_from(levels, HISTOGRAM_SHAPE))
        if not len(new.steps):
            continue
        changes = grow(levels, new, HISTOGRAM_SHAPE, lambda chunk: _data(session, HistTile, chunk))
        prepared.blocks.append((block, _Rows.of(changes)))
    return prepared


def commit(session: Session, prepared: Prepared) -> None:
    """Write it; the caller commits. ``MovedError``, and then nothing must be committed, when it is of an old state."""
    item = prepared.due
    connection = session.connection()
    concerns(session, item.run_id, item.stream_id)
    state = connection.execute(
        update(StreamState)
        .where(
            col(StreamState.stream_id) == item.stream_id,
            col(StreamState.attempt) == item.attempt,
            col(StreamState.epoch) == item.epoch,
        )
        .values(
            epoch=item.epoch + 1,
            sealed=case((col(StreamState.sealed) < prepared.sealed, prepared.sealed), else_=col(StreamState.sealed)),
        )
    )
    gone = sum(
        connection.execute(delete(WalFrame).where(col(WalFrame.id).in_(some))).rowcount
        for some in _batches(item.frames)
    )
    if state.rowcount != 1 or gone != len(item.frames):
        raise MovedError(f"stream {item.stream_id} has moved on")
    if prepared.gaps:
        connection.execute(insert(Gap), prepared.gaps)
    for series in prepared.series:
        number = series.id if series.id is not None else _new_series(session, item, series)
        _replace(session, ScalarChunk, series.rows, {"series_id": number})
    known = [
        {"b_id": series.id, **series.figures} for series in prepared.series if series.id is not None and series.figures
    ]
    if known:
        names = [name for name in known[0] if name != "b_id"]
        connection.execute(
            update(ScalarSeries.__table__)  # type: ignore[attr-defined]
            .where(col(ScalarSeries.id) == bindparam("b_id"))
            .values({name: bindparam(name) for name in names}),
            known,
        )
    for block, rows in prepared.blocks:
        owner = {"run_id": item.run_id, "stream_id": item.stream_id, "attempt": item.attempt, "block": block}
        _replace(session, HistTile, rows, owner)


def _new_series(session: Session, item: Due, series: _Series) -> int:
    row = ScalarSeries(
        run_id=item.run_id,
        attempt=item.attempt,
        rank=series.rank,
        stream=item.stream,
        name=series.name,
        **series.figures,
    )
    session.add(row)
    session.flush()
    assert row.id is not None
    return row.id


def _replace(session: Session, table: type[SQLModel], rows: _Rows, owner: dict[str, int]) -> None:
    connection = session.connection()
    key: Any = table.__table__.c.id  # type: ignore[attr-defined]
    for some in _batches(rows.removed):
        connection.execute(delete(table).where(key.in_(some)))
    if rows.added:
        connection.execute(insert(table), [{**owner, **row} for row in rows.added])


def _batches(items: Sequence[int]) -> Iterable[Sequence[int]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))
