"""The steps that are not in tiles yet, as planes that grow with every frame: only what is new is read."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Executable, bindparam, select
from sqlmodel import Session, col

from floatscope_server.frame import REQUIRED_FIELDS, Frame
from floatscope_server.models import WalFrame
from floatscope_server.query.cells import Plane, Wanted, empty_plane
from floatscope_server.query.frames import FrameCache, summary_frames
from floatscope_server.query.line import Stretch
from floatscope_server.query.memory import NotInMemoryError, now_of
from floatscope_server.query.stepwise import MADE_OF, made_plane
from floatscope_server.tiles.planes import Planes, joined, raw_planes
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["CHUNK", "MOST_CELLS", "Chunk", "OpenTail", "TailKey", "new_frames"]

CHUNK = 256
"""Steps whose planes are kept and dropped together."""

_WHOLE_LAYERS = 600
"""Up to so many layers a chunk has all statistics from the first question on: frames are decoded once, and not again
for each metric. All of 256 steps of 600 layers take 8 MB; with more layers they would push each other out."""

_PIECE_CELLS = 1 << 19
"""Cells of layers and steps that are merged over the ranks at once: about 100 MiB of fields at most."""

_MOST_TAILS = 1000

_FIELDS = {
    Stat.COUNT: "count",
    Stat.ZEROS: "zeros",
    Stat.NANS: "nans",
    Stat.INFS: "infs",
    Stat.ABSMAX: "absmax",
    Stat.ABSMIN: "absmin",
    Stat.MEAN: "sum",
    Stat.RMS: "sumsq",
    Stat.SCALE: "scale",
    Stat.UNDER: "under",
    Stat.OVER_LOW: "over_low",
    Stat.OVER_HIGH: "over_high",
    Stat.FLOOR: "floor",
}

_EVERY = frozenset({*_FIELDS, *MADE_OF})

MOST_CELLS = 1 << 17
"""Cells of layers and steps that are merged or answered in an event loop at once: some 10 ms."""

_NEW_FRAMES: Executable = select(col(WalFrame.id), col(WalFrame.first), col(WalFrame.n)).where(
    col(WalFrame.stream_id) == bindparam("stream"),
    col(WalFrame.attempt) == bindparam("attempt"),
    col(WalFrame.id) > bindparam("after"),
    col(WalFrame.first) + col(WalFrame.n) > bindparam("sealed"),
)
"""Number, first step and steps of the frames of the open tail after one of them."""


def new_frames(session: Session, stream: int, attempt: int, *, after: int, sealed: int) -> Sequence[Any]:
    """Those of the open tail after the frame ``after``: ``id``, ``first`` and ``n`` of each."""
    now = now_of(session)
    if now is not None:
        found = next((each for each in now.streams.values() if each.id == stream), None)
        frames = () if found is None else found.frames
        # They are in the order of their numbers.
        begin = bisect_right(frames, after, key=lambda frame: frame.id)
        return [f for f in frames[begin:] if f.attempt == attempt and f.first + f.n > sealed]
    asked = {"stream": stream, "attempt": attempt, "after": after, "sealed": sealed}
    return session.connection().execute(_NEW_FRAMES, asked).all()


@dataclass(frozen=True, slots=True)
class TailKey:
    """An attempt of a stream, with so many ranks, sealed up to ``sealed``."""

    stream: int
    attempt: int
    ranks: int
    sealed: int


@dataclass(slots=True)
class Chunk:
    """The steps ``first`` to ``first + CHUNK - 1``; ``planes`` [layers, CHUNK] of what level 0 holds, ``present`` the
    steps of which there is a frame."""

    first: int
    present: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(CHUNK, np.bool_))
    newest: int = 0
    """The highest number of a frame that touches it."""
    stats: frozenset[Stat] = frozenset()
    layers: int = 0
    planes: Planes = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the planes."""
        return sum(plane.nbytes for plane in self.planes.values())

    def clear(self) -> None:
        """Forget the planes: they are read again when somebody asks."""
        self.stats, self.layers, self.planes = frozenset(), 0, {}

    def write(self, low: int, columns: int, found: Planes, layers: int) -> None:
        """Put ``found`` [layers, columns] in place of what was known of the steps from ``first + low`` on."""
        self._grow(layers)
        place = slice(low, low + columns)
        for stat in self.stats:
            for agg in (Agg.VALUE, Agg.MAX, Agg.MIN, Agg.RANK):
                values = made_plane((stat, agg), found) if agg == Agg.VALUE else found.get((stat, agg))
                if values is not None or (stat, agg) in self.planes:
                    self._put((stat, agg), place, values)

    def _put(self, what: Wanted, place: slice, values: Plane | None) -> None:
        held = self.planes.get(what)
        if held is None:
            held = self.planes[what] = empty_plane((self.layers, CHUNK))
        if values is not None and values.dtype == np.float64 and held.dtype == np.float32:
            wide = empty_plane(held.shape, np.float64)
            np.copyto(wide, held)
            held = self.planes[what] = wide
        held[:, place] = empty_plane((1, 1), held.dtype)
        if values is not None:
            held[: len(values), place] = values

    def _grow(self, layers: int) -> None:
        if layers <= self.layers:
            return
        for what, plane in self.planes.items():
            self.planes[what] = np.concatenate((plane, empty_plane((layers - len(plane), CHUNK), plane.dtype)))
        self.layers = layers


@dataclass(slots=True)
class _Tail:
    sealed: int = 0
    newest: int = 0
    chunks: dict[int, Chunk] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class OpenTail:
    """Chunks of the open tails that were looked at last, bounded in bytes."""

    def __init__(self, max_bytes: int, frames: FrameCache) -> None:
        self._max = max_bytes
        self._frames = frames
        self._tails: OrderedDict[tuple[int, int], _Tail] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the planes that are kept."""
        with self._lock:
            return sum(chunk.nbytes for tail in self._tails.values() for chunk in list(tail.chunks.values()))

    @contextmanager
    def chunks(
        self, session: Session, key: TailKey, first: int, end: int, stats: Collection[Stat]
    ) -> Iterator[Iterable[Chunk]]:
        """Those of the steps ``first`` to ``end - 1``, ascending, with at least ``stats``; not to be changed, and not
        to be used afterwards. Steps before ``key.sealed`` may be in them and do not count."""
        kept = self._tail(key)
        in_memory = now_of(session) is not None
        if not kept.lock.acquire(blocking=not in_memory):
            raise NotInMemoryError
        try:
            if key.sealed < kept.sealed and in_memory:
                raise NotInMemoryError
            # For a snapshot older than what is kept, of which sealed steps are gone, another one.
            tail = kept if key.sealed >= kept.sealed else _Tail()
            self._update(session, key, tail)
            yield self._built(session, key, tail, first, end, frozenset(stats))
        finally:
            kept.lock.release()
        self._shrink()

    def _tail(self, key: TailKey) -> _Tail:
        with self._lock:
            tail = self._tails.setdefault((key.stream, key.attempt), _Tail())
            self._tails.move_to_end((key.stream, key.attempt))
            while len(self._tails) > _MOST_TAILS:
                self._tails.popitem(last=False)
        return tail

    def _update(self, session: Session, key: TailKey, tail: _Tail) -> None:
        """Take in the frames that came since the last time."""
        if key.sealed > tail.sealed:
            tail.sealed = key.sealed
            for number in [number for number in tail.chunks if (number + 1) * CHUNK <= key.sealed]:
                del tail.chunks[number]
        rows = new_frames(session, key.stream, key.attempt, after=tail.newest, sealed=key.sealed)
        if now_of(session) is not None:
            self._require_little(rows)
        touched: dict[int, npt.NDArray[np.bool_]] = {}
        for row_id, first, n in ((row.id, row.first, row.n) for row in rows):
            tail.newest = max(tail.newest, row_id)
            at, end = max(first, key.sealed), first + n
            while at < end:
                number = at // CHUNK
                low = at - number * CHUNK
                high = min(end - number * CHUNK, CHUNK)
                chunk = tail.chunks.setdefault(number, Chunk(number * CHUNK))
                chunk.newest = max(chunk.newest, row_id)
                chunk.present[low:high] = True
                touched.setdefault(number, np.zeros(CHUNK, np.bool_))[low:high] = True
                at = (number + 1) * CHUNK
        for number, where in touched.items():
            chunk = tail.chunks[number]
            if chunk.stats:
                try:
                    self._read(session, key, chunk, where)
                except BaseException:
                    # The frames are noted: without its planes it is read again.
                    chunk.clear()
                    raise

    def _require_little(self, rows: Sequence[Any]) -> None:
        """Before anything is noted: all of ``rows`` at hand, and not too much of it."""
        cells = 0
        for row in rows:
            frame = self._frames.get(row.id)
            if frame is None:
                raise NotInMemoryError
            cells += row.n * len(frame.layers)
        if cells > MOST_CELLS:
            raise NotInMemoryError

    def _built(
        self, session: Session, key: TailKey, tail: _Tail, first: int, end: int, stats: frozenset[Stat]
    ) -> Iterator[Chunk]:
        spare = self._max
        for number in sorted(tail.chunks):
            if (number + 1) * CHUNK <= first or number * CHUNK >= end:
                continue
            chunk = tail.chunks[number]
            if stats <= chunk.stats:
                yield chunk
                continue
            if now_of(session) is not None:
                rows = new_frames(session, key.stream, key.attempt, after=0, sealed=max(key.sealed, chunk.first))
                self._require_little([row for row in rows if row.first < chunk.first + CHUNK])
            stats |= chunk.stats
            fresh = Chunk(chunk.first, chunk.present, stats=stats)
            self._read(session, key, fresh, chunk.present)
            spare -= fresh.nbytes
            # An older snapshot lacks frames that the others know.
            if fresh.newest >= chunk.newest and spare > 0:
                tail.chunks[number] = fresh
            yield fresh

    def _read(self, session: Session, key: TailKey, chunk: Chunk, where: npt.NDArray[np.bool_]) -> None:
        """Read the steps of ``chunk`` from the first to the last of ``where``."""
        places = np.flatnonzero(where)
        low, end = int(places[0]), int(places[-1]) + 1
        while low < end:
            columns = max(1, min(end - low, _PIECE_CELLS // max(chunk.layers, 1)))
            at = chunk.first + low
            stretch = Stretch(attempt=key.attempt, first=at, last=at + columns - 1)
            found: list[tuple[int, Frame]] = []
            layers = 0
            for stored in summary_frames(session, self._frames, key.stream, stretch):
                frame = stored.content
                chunk.newest = max(chunk.newest, stored.id)
                layers = max(layers, int(frame.layers.max(initial=-1)) + 1)
                found.append((stored.rank, frame))
            if not chunk.planes and layers <= _WHOLE_LAYERS:
                chunk.stats = _EVERY
            made_of = {of for stat in chunk.stats for of in MADE_OF.get(stat, (stat,))}
            names = {*REQUIRED_FIELDS, *(_FIELDS[stat] for stat in made_of)}
            frames = joined((rank, frame.only(names)) for rank, frame in found)
            planes = raw_planes(frames, first=at, columns=columns, layers=layers, ranks=key.ranks)
            chunk.write(low, columns, planes, layers)
            low += columns

    def _shrink(self) -> None:
        """Forget planes, those first that nobody has asked for the longest, until the rest fits."""
        with self._lock:
            tails = list(self._tails.values())
        held = sum(chunk.nbytes for tail in tails for chunk in list(tail.chunks.values()))
        for tail in tails:
            if held <= self._max:
                return
            if tail.lock.acquire(blocking=False):
                try:
                    for number in sorted(tail.chunks):
                        if held <= self._max:
                            return
                        held -= tail.chunks[number].nbytes
                        tail.chunks[number].clear()
                finally:
                    tail.lock.release()
