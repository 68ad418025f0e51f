"""Device samples by time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec
import numpy as np
from sqlalchemy import func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.models import DeviceFacts, Run, ScalarSeries, WalFrame
from floatscope_server.query.frames import StoredFrame, stored_frames
from floatscope_server.query.line import Stretch, stream_id
from floatscope_server.query.sealed import Sealed
from floatscope_server.query.series import Piece, pooled_series
from floatscope_server.store.framed import devices_of
from floatscope_server.store.parts import NANOSECONDS
from floatscope_server.store.shapes import DEVICES as SHAPE
from floatscope_server.store.shapes import FACTS, SEEN, figures_of
from floatscope_server.tiles.points import Points

__all__ = ["device_samples", "device_series", "newest_samples", "sample_of"]

_RECENT_S = 75.0
"""A card reads all that it reads seldom within a minute."""
_MILLISECOND = 1_000_000
_COUNTS = (
    "vram_used_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "alloc_retries",
    "ooms",
    "pcie_width",
    "pcie_replays",
    "ecc_corrected",
    "ecc_uncorrected",
)

_Facts = dict[tuple[int, int, str, int], DeviceFacts]
_Device = tuple[int, str, int]
"""Rank, backend, index."""


def sample_of(device: wire.Device, rank: int) -> dict[str, object]:
    """``device`` as JSON; what is read seldom only where it was: without that a sample is half as long."""
    figures = msgspec.structs.asdict(device)
    for name in wire.READ_SELDOM:
        if figures[name] is None:
            del figures[name]
    return {**figures, "rank": rank}


def newest_samples(session: Session, run: Run) -> list[dict[str, object]]:
    """One sample of each card that was read within ``_RECENT_S`` of the newest of its rank, with every figure: what is
    read seldom is the newest that is known."""
    newest: dict[tuple[object, ...], dict[str, object]] = {}
    for sample in device_samples(session, run, seconds=_RECENT_S):
        key = sample["rank"], sample["backend"], sample["index"]
        blank = dict.fromkeys(wire.READ_SELDOM)
        before = newest.get(key, blank)
        newest[key] = {**{name: before[name] for name in blank}, **sample}
    return list(newest.values())


def device_samples(session: Session, run: Run, *, seconds: float) -> list[dict[str, object]]:
    """Samples of the last ``seconds`` before the newest of their rank, newest last, each with its rank.

    Their time is exact for the last 15 minutes of a rank, and rounded down to the millisecond before.
    """
    assert run.id is not None
    stream = stream_id(session, run.id, "gpu")
    if stream is None:
        return []
    rows = _rows(session, run.id)
    facts = _facts(session, run.id)
    sealed = Sealed(session, [row.id for row in rows if row.id is not None], SHAPE)
    samples: list[dict[str, object]] = []
    for rank, end in _newest(session, stream, rows).items():
        start = end - 1 - seconds
        found = _stored(sealed, [row for row in rows if row.rank == rank], facts, start, end)
        for stored in _tail(session, stream, int(start), end, rank):
            for device in stored.content:
                if start <= device.time_ns / NANOSECONDS < end:
                    key = (device.backend, device.index, device.time_ns // _MILLISECOND)
                    found.pop(key, None)
                    samples.append(sample_of(device, rank))
        samples += found.values()
    samples.sort(key=lambda sample: (sample["time_ns"], sample["rank"], sample["index"]))
    return samples


def device_series(
    session: Session,
    run: Run,
    *,
    first: float | None,
    last: float | None,
    points: int,
    figures: Collection[str] | None = None,
    rank: int | None = None,
) -> list[dict[str, object]]:
    """Every figure of every card from ``first`` to ``last`` (seconds since 1970) in at most ``points`` cells: the
    figure's name, whose it is, and by ``times`` (in seconds) the mean in ``values`` and the extremes. ``figures`` and
    ``rank``: only these, of this one.

    A cell is a power of two of seconds and begins at a multiple of it; ``cell`` is 0 where every sample is there. Of a
    time that two attempts have read, the later one counts.
    """
    assert run.id is not None
    stream = stream_id(session, run.id, "gpu")
    if stream is None:
        return []
    rows = _rows(session, run.id)
    facts = _facts(session, run.id)
    low = 0 if first is None else int(first * 1000)
    high = 1 << 62 if last is None else int(last * 1000)
    sealed = Sealed(session, [row.id for row in rows if row.id is not None], SHAPE)
    tails = _tail_points(session, stream, low, high)
    known = {(row.attempt, row.rank, row.name): row.id for row in rows}
    shown: list[dict[str, object]] = []
    for attempt, of_rank, name in sorted(known.keys() | tails.keys()):
        backend, index, figure = _parts(name)
        unasked = (figures is not None and figure not in figures) or rank not in (None, of_rank)
        if figure == SEEN or unasked:
            continue
        number = known.get((attempt, of_rank, name))
        piece = Piece(
            sealed=sealed,
            series=-1 if number is None else number,
            first=low,
            last=high,
            tail=tails.get((attempt, of_rank, name), Points.none()),
        )
        series = pooled_series(name, [piece], points, SHAPE)
        if series is None:
            continue
        fact = facts.get((attempt, of_rank, backend, index))
        shown.append(
            {
                "rank": of_rank,
                "attempt": attempt,
                "backend": backend,
                "index": index,
                "pci": None if fact is None else fact.pci,
                "name": None if fact is None else fact.name,
                "vram_total_bytes": None if fact is None else fact.vram_total_bytes,
                "figure": figure,
                "cell": 0 if series.cell == 1 else series.cell // 1000,
                "n": series.n,
                "times": series.steps / 1000,
                "values": series.values,
                "min": series.min,
                "max": series.max,
            }
        )
    return shown


def _rows(session: Session, run_id: int) -> list[ScalarSeries]:
    return list(
        session.exec(select(ScalarSeries).where(ScalarSeries.run_id == run_id, ScalarSeries.stream == "gpu")).all()
    )


def _facts(session: Session, run_id: int) -> _Facts:
    rows = session.exec(select(DeviceFacts).where(DeviceFacts.run_id == run_id))
    return {(row.attempt, row.rank, row.backend, row.idx): row for row in rows}


def _parts(name: str) -> tuple[str, int, str]:
    backend, index, figure = name.rsplit("/", 2)
    return backend, int(index), figure


def _newest(session: Session, stream: int, rows: Iterable[ScalarSeries]) -> dict[int, int]:
    """By rank, the second after its newest reading, which is the one that came last: a clock that is ahead must hide
    neither other ranks nor what its own rank sends once it is right."""
    newest = {}
    for row in sorted(rows, key=lambda row: (row.attempt, row.last_step)):
        newest[row.rank] = row.last_step // 1000 + 1
    last = select_columns(func.max(WalFrame.id)).where(col(WalFrame.stream_id) == stream).group_by(col(WalFrame.rank))
    frames = session.execute(
        select_columns(col(WalFrame.rank), col(WalFrame.first) + col(WalFrame.n)).where(col(WalFrame.id).in_(last))
    )
    return newest | dict(frames.all())


def _tail(
    session: Session, stream: int, first: int, last: int, rank: int | None
) -> Iterator[StoredFrame[tuple[wire.Device, ...]]]:
    attempts = session.exec(select(WalFrame.attempt).where(WalFrame.stream_id == stream).distinct()).all()
    for attempt in sorted(attempts):
        stretch = Stretch(attempt=attempt, first=first, last=last)
        yield from stored_frames(session, stream, stretch, devices_of, rank=rank)


def _tail_points(session: Session, stream: int, low: int, high: int) -> dict[tuple[int, int, str], Points]:
    found: dict[tuple[int, int, str], tuple[list[int], list[float]]] = {}
    for stored in _tail(session, stream, low // 1000, high // 1000, None):
        for device in stored.content:
            at = device.time_ns // _MILLISECOND
            if not low <= at <= high:
                continue
            for figure, value in figures_of(device):
                name = f"{device.backend}/{device.index}/{figure}"
                steps, values = found.setdefault((stored.attempt, stored.rank, name), ([], []))
                steps.append(at)
                values.append(value)
    return {
        key: Points.joined([Points(np.array(steps, np.int64), np.array(values, np.float64)), Points.none()])
        for key, (steps, values) in found.items()
    }


def _stored(
    sealed: Sealed, rows: Iterable[ScalarSeries], facts: _Facts, start: float, end: int
) -> dict[tuple[str, int, int], dict[str, object]]:
    """Samples of one rank put together again from their figures, by backend, index and millisecond."""
    found: dict[tuple[str, int, int], dict[str, object]] = {}
    for row in sorted(rows, key=lambda row: row.attempt):
        assert row.id is not None
        backend, index, figure = _parts(row.name)
        points = sealed.points(row.id, int(start * 1000), end * 1000 - 1)
        for at, value in zip(points.steps.tolist(), points.values.tolist(), strict=True):
            key = (backend, index, at)
            if key not in found:
                fact = facts.get((row.attempt, row.rank, backend, index))
                known = {} if fact is None else {name: getattr(fact, name) for name in FACTS}
                blank = wire.Device(time_ns=at * _MILLISECOND, backend=backend, index=index, **known)
                found[key] = sample_of(blank, row.rank)
            if figure != SEEN:
                found[key][figure] = int(value) if figure in _COUNTS else value
    return found
