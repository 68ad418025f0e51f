"""A store whose streams are cut small, what is sealed in it, and what it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import func, select, update
from sqlmodel import Session, col

from floatscope import wire
from floatscope_server.alerts.models import Evaluated
from floatscope_server.frame import Frame
from floatscope_server.models import Stream, StreamState, Tile, TileRaw, WalFrame, Writer
from floatscope_server.store import Store
from floatscope_server.store.tilestore import Place, StreamKey, read_planes
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Plane, Planes, derived, pooled_planes, raw_planes
from floatscope_server.tiles.pool import pool
from floatscope_server.tiles.rows import grown
from floatscope_server.tiles.statistics import POOLED, Agg, Stat

if TYPE_CHECKING:
    from tests.server.conftest import Pen

__all__ = ["EXACT", "assert_sealed", "deliver", "judge", "open_frames", "states", "tiles"]

EXACT = Geometry(columns=16, fan=4, block=4, keep_bits=23, keep_bits_pooled=23)


def deliver(pen: Pen, frames: Sequence[Frame], geometry: Geometry = EXACT, kind: str = "grad") -> None:
    """Send ``frames`` as one block; its stream is cut as ``geometry`` says if this is its first."""
    parts = tuple(
        wire.Summaries(
            kind=kind,
            first_step=frame.first_step,
            steps=frame.steps,
            layers=frame.layers.astype("<u4").tobytes(),
            fields=tuple(
                wire.Field(name=name, dtype=field.dtype.str, data=field.tobytes())
                for name, field in frame.fields.items()
            ),
            placement=frame.placement,
        )
        for frame in frames
    )
    answer = pen.deliver(wire.Body(summaries=parts))
    assert isinstance(answer, wire.Ack), answer
    names = ("columns", "fan", "block", "keep_bits", "keep_bits_pooled")
    values = {name: getattr(geometry, name) for name in names}
    pen.store.write(
        lambda session: session.execute(update(Stream).where(col(Stream.columns).is_(None)).values(**values))
    )


def judge(store: Store) -> None:
    """As if the rules had judged all that is stored."""

    def mark(session: Session) -> None:
        for writer in session.scalars(select(Writer)).all():
            session.merge(
                Evaluated(
                    writer=writer.id,
                    run_id=writer.run_id,
                    attempt=writer.attempt,
                    seq=writer.last_seq,
                    step=writer.last_step,
                )
            )

    store.write(mark)


def states(store: Store) -> dict[int, tuple[int, int]]:
    """Watermark and epoch by attempt."""
    with store.read() as session:
        return {row.attempt: (row.sealed, row.epoch) for row in session.scalars(select(StreamState))}


def open_frames(store: Store) -> int:
    with store.read() as session:
        number: int = session.execute(select(func.count()).select_from(WalFrame)).scalar_one()
        return number


def tiles(store: Store) -> tuple[int, int]:
    """Rows of level 0, and above it."""
    with store.read() as session:
        return (
            session.execute(select(func.count()).select_from(TileRaw)).scalar_one(),
            session.execute(select(func.count()).select_from(Tile)).scalar_one(),
        )


def assert_sealed(
    store: Store,
    frames: Iterable[tuple[int, Frame]],
    *,
    layers: int,
    ranks: int,
    attempt: int = 1,
    geometry: Geometry = EXACT,
    rtol: float = 0.0,
) -> None:
    """Every plane of every level is what ``frames`` (in order of arrival) give, and nothing else is stored."""
    frames = list(frames)
    with store.read() as session:
        row = session.scalars(select(StreamState).where(col(StreamState.attempt) == attempt)).one()
        run_id = session.scalars(select(col(Stream.run_id)).where(col(Stream.id) == row.stream_id)).one()
        key = StreamKey(run_id=run_id, stream_id=row.stream_id, attempt=attempt, sealed=row.sealed, epoch=row.epoch)
        raw = raw_planes(frames, first=0, columns=row.sealed, layers=layers, ranks=ranks)
        exact = pooled_planes(raw)
        level = 0
        while level == 0 or geometry.parts_end(level, row.sealed):
            expected = raw if level == 0 else pool(_whole(exact, geometry.cell(level)), geometry.cell(level))
            for place, width in _places(geometry, level, row.sealed, -(-layers // geometry.block)):
                held = read_planes(session, key, place, place.idx + 1).get(place.idx, {})
                below = place.block * geometry.block
                piece = {
                    what: plane[below : below + geometry.block, place.idx * width : (place.idx + 1) * width]
                    for what, plane in expected.items()
                }
                _assert_planes(held, piece, (level, place), rtol=rtol, means=1e-6 if level else 0.0)
            level += 1


def _whole(planes: Planes, cell: int) -> Planes:
    """As many columns as make whole cells."""
    return {what: plane[:, : plane.shape[1] // cell * cell] for what, plane in planes.items()}


def _places(geometry: Geometry, level: int, sealed: int, blocks: int) -> list[tuple[Place, int]]:
    full = geometry.full_tiles(level, sealed)
    places = [(Place(level, 0, block, idx), geometry.columns) for block in range(blocks) for idx in range(full)]
    if level:
        parts = range(full * geometry.fan, geometry.parts_end(level, sealed))
        places += [(Place(level, 1, block, idx), geometry.part_columns) for block in range(blocks) for idx in parts]
    return places


def _assert_planes(held: Planes, expected: Planes, where: object, *, rtol: float, means: float) -> None:
    shown, wanted = _complete(held), _complete(expected)
    assert shown.keys() == wanted.keys(), where
    for what, plane in wanted.items():
        tolerance = max(rtol, means if what[1] == Agg.MEAN else 0.0)
        # A logarithm of what is rounded is off by an amount, not by a share.
        atol = tolerance * (4.0 if what[0] == Stat.LOG2_AMAX else 1e-3)
        _assert_plane(shown[what], plane, (where, what), rtol=tolerance, atol=atol)


def _complete(planes: Planes) -> Planes:
    """With what gave way to another one, and without what is missing throughout."""
    whole = dict(planes)
    values = {stat: plane for (stat, agg), plane in planes.items() if agg == Agg.VALUE}
    if values:
        values |= derived(values)
    for stat in POOLED if planes else ():
        if stat in values:
            for agg in (Agg.MAX, Agg.MIN):
                whole.setdefault((stat, agg), values[stat])
        elif (stat, Agg.MAX) in planes and stat != Stat.STEPS:
            for agg in (Agg.MIN, Agg.MEAN):
                whole.setdefault((stat, agg), planes[stat, Agg.MAX])
            whole.setdefault((stat, Agg.WEIGHT), planes[Stat.STEPS, Agg.MAX])
    return {what: plane for what, plane in whole.items() if not is_missing(plane).all()}


def _assert_plane(shown: Plane, wanted: Plane, where: object, *, rtol: float, atol: float) -> None:
    assert is_missing(wanted[len(shown) :]).all(), where
    wanted = grown(wanted, len(shown))[: len(shown)]
    assert (is_missing(shown) == is_missing(wanted)).all(), where
    np.testing.assert_allclose(shown, wanted, rtol=rtol, atol=atol, equal_nan=True, err_msg=str(where))
