"""The open tail of a stream as planes: frames read from the store, decoded, and spread out block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import func, select
from sqlmodel import Session, col

from floatscope_server.frame import Frame
from floatscope_server.merge import unobserved
from floatscope_server.models import AGAIN, WalFrame
from floatscope_server.store.framed import frame_of
from floatscope_server.store.parts import MAX_STEPS
from floatscope_server.store.tilestore import StreamKey
from floatscope_server.tiles.departures import Departure, departures
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Planes, joined, raw_planes
from floatscope_server.tiles.rank_sets import RankSets, original_of
from floatscope_server.tiles.rows import beside

__all__ = ["DamagedFrameError", "FrameKey", "Tail", "frames_between"]

_BYTES = 24 << 20
"""Frames that are decoded at once; with more (many ranks, many layers) a tile is put together from narrower pieces."""
_AT_ONCE = 256


class DamagedFrameError(Exception):
    """The frame ``key`` cannot be decoded."""

    def __init__(self, key: FrameKey) -> None:
        super().__init__(f"frame {key.id} of step {key.first} is damaged")
        self.key = key


class FrameKey(NamedTuple):
    """A row of ``wal_frame`` but for its data, of which there are ``nbytes``."""

    id: int
    first: int
    n: int
    rank: int
    writer: int
    seq: int
    flags: int
    nbytes: int

    @property
    def again(self) -> bool:
        """Whether it waits for other ranks."""
        return bool(self.flags & AGAIN)


def frames_between(session: Session, key: StreamKey, first: int, end: int) -> list[FrameKey]:
    """The frames with open columns from ``first`` to before ``end``, in the order of arrival."""
    rows = session.execute(
        select(
            *(getattr(WalFrame, name) for name in ("id", "first", "n", "rank", "writer", "seq", "flags")),
            func.length(WalFrame.data),
        )
        .where(
            col(WalFrame.stream_id) == key.stream_id,
            col(WalFrame.attempt) == key.attempt,
            col(WalFrame.first) > first - MAX_STEPS,
            col(WalFrame.first) < end,
            col(WalFrame.first) + col(WalFrame.n) > first,
        )
        .order_by(col(WalFrame.id))
    )
    return [FrameKey(*row) for row in rows]


class Tail:
    """What ``keys`` say of the tile at column ``first``. ``session`` is not needed after the first lines of this.

    ``layers`` are those of the run, ``ranks`` those of the attempt. ``replicas``: only these, or only the others.
    ``but`` gives, by block, cells whose ranks do not count, nor copies of theirs. ``rest`` is called after each
    piece of what is done at once. ``DamagedFrameError``.
    """

    def __init__(
        self,
        session: Session,
        keys: Sequence[FrameKey],
        geometry: Geometry,
        *,
        first: int,
        layers: int,
        ranks: int,
        replicas: bool | None = None,
        but: Callable[[int], RankSets | None] | None = None,
        rest: Callable[[], object] = bool,
    ) -> None:
        self._geometry = geometry
        self._rest = rest
        self._first = first
        self._ranks = ranks
        self._replicas = replicas
        self._but = but
        self._frames: list[tuple[int, Frame]] = []
        self._pieces: list[tuple[int, dict[int, Planes], dict[int, RankSets]]] = []
        self._departures: list[Departure] = []
        total = sum(key.nbytes for key in keys)
        if total <= _BYTES:
            self._frames = joined(self._wanted(session, keys, layers))
            top = max((int(frame.layers.max()) for _, frame in self._frames), default=-1)
        else:
            top = self._in_pieces(session, keys, layers, max(1, geometry.columns * _BYTES // total))
        self.blocks = -(-(top + 1) // geometry.block)
        self._layers = top + 1

    def planes(self, block: int) -> Planes:
        """Level 0 of ``block``; empty if nothing was observed in it."""
        if self._pieces:
            parts = [of_block.get(block, {}) for _, of_block, _ in self._pieces]
            rows = max((len(plane) for part in parts for plane in part.values()), default=0)
            return beside(parts, [width for width, _, _ in self._pieces], rows)
        return self._planes(block, self._frames, self._first, self._geometry.columns, self._layers)

    def rank_sets(self, block: int) -> RankSets:
        """Which ranks have rows of ``block``."""
        if self._pieces:
            return RankSets.beside([sets.get(block, RankSets.none(0, width)) for width, _, sets in self._pieces])
        return self._sets(block, self._frames, self._first, self._geometry.columns, self._layers)

    def departures(self, block: int) -> list[Departure]:
        """Where ranks depart from each other."""
        if self._pieces or self._ranks == 1:
            return [found for found in self._departures if found.layer // self._geometry.block == block]
        return self._departing(block, self._frames, self._first, self._geometry.columns, self._layers)

    def _wanted(self, session: Session, keys: Sequence[FrameKey], layers: int) -> Iterator[tuple[int, Frame]]:
        for rank, frame in _decoded(session, keys, layers):
            if self._replicas is None or self._replicas == (frame.placement == "replica"):
                yield rank, frame

    def _in_pieces(self, session: Session, keys: Sequence[FrameKey], layers: int, width: int) -> int:
        top = -1
        for start in range(self._first, self._first + self._geometry.columns, width):
            columns = min(width, self._first + self._geometry.columns - start)
            inside = [key for key in keys if key.first < start + columns and key.first + key.n > start]
            frames = joined(self._wanted(session, inside, layers))
            known = max((int(frame.layers.max()) for _, frame in frames), default=-1) + 1
            top = max(top, known - 1)
            planes: dict[int, Planes] = {}
            sets: dict[int, RankSets] = {}
            self._rest()
            for block in range(-(-known // self._geometry.block)):
                planes[block] = self._planes(block, frames, start, columns, known)
                sets[block] = self._sets(block, frames, start, columns, known)
                if self._ranks > 1:
                    self._departures += self._departing(block, frames, start, columns, known)
                self._rest()
            self._pieces.append((columns, planes, sets))
        return top

    def _planes(self, block: int, frames: Sequence[tuple[int, Frame]], first: int, columns: int, layers: int) -> Planes:
        begin = block * self._geometry.block
        but = None if self._but is None else self._but(block)
        return raw_planes(
            frames if but is None else self._without(frames, but, begin),
            first=first,
            columns=columns,
            layers=min(self._geometry.block, layers - begin),
            ranks=self._ranks,
            first_layer=begin,
        )

    def _sets(self, block: int, frames: Sequence[tuple[int, Frame]], first: int, columns: int, layers: int) -> RankSets:
        begin = block * self._geometry.block
        rows = max(0, min(self._geometry.block, layers - begin))
        return RankSets.of(frames, first=first, columns=columns, layers=rows, first_layer=begin)

    def _without(
        self, frames: Sequence[tuple[int, Frame]], but: RankSets, first_layer: int
    ) -> Iterator[tuple[int, Frame]]:
        """``frames`` as if nothing had been observed in those cells; ``but`` begins where the tile does."""
        end = self._first + self._geometry.columns
        for rank, frame in frames:
            if frame.first_step >= end or frame.first_step + frame.steps <= self._first:
                continue
            cut = frame.between(self._first, end - 1)
            own = np.flatnonzero((cut.layers >= first_layer) & (cut.layers < first_layer + len(but.bits)))
            row = cut.first_step - self._first
            known = but.has(rank) | but.has(original_of(rank, frame))
            gone = np.zeros((cut.steps, len(cut.layers)), np.bool_)
            gone[:, own] = known[cut.layers[own] - first_layer, row : row + cut.steps].T
            yield rank, unobserved(cut, gone) if gone.any() else cut

    def _departing(
        self, block: int, frames: Sequence[tuple[int, Frame]], first: int, columns: int, layers: int
    ) -> list[Departure]:
        begin = block * self._geometry.block
        size = min(self._geometry.block, layers - begin)
        return departures(frames, first=first, columns=columns, first_layer=begin, layers=size)


def _decoded(session: Session, keys: Sequence[FrameKey], layers: int) -> Iterator[tuple[int, Frame]]:
    for start in range(0, len(keys), _AT_ONCE):
        part = keys[start : start + _AT_ONCE]
        data = _data(session, (key.id for key in part))
        for key in part:
            frame = _frame(data.pop(key.id, b""), layers)
            if frame is None:
                raise DamagedFrameError(key)
            # Columns that are sealed are not open any more.
            yield key.rank, frame.between(key.first, key.first + key.n - 1)


def _data(session: Session, ids: Iterable[int]) -> dict[int, bytes]:
    rows = session.execute(select(col(WalFrame.id), col(WalFrame.data)).where(col(WalFrame.id).in_(list(ids))))
    return {number: data for number, data in rows}  # noqa: C416 - rows are no pairs for mypy


def _frame(data: bytes, layers: int) -> Frame | None:
    """The frame, None if it is not what was once checked and stored."""
    frame = frame_of(data)
    return frame if frame is not None and 0 <= int(frame.layers.max()) < layers else None
