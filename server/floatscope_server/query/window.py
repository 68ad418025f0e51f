"""The reading verbs of the store: a window of layers by steps, the newest values, what came since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, select
from sqlmodel import Session, col

from floatscope_server.models import Stream, StreamState
from floatscope_server.query.cells import Cells, Plane, Rows, Wanted, empty_plane
from floatscope_server.query.directory import Directory
from floatscope_server.query.frames import FrameCache
from floatscope_server.query.histtails import HistTails
from floatscope_server.query.levels import Sealed, last_tile
from floatscope_server.query.line import Stretch, attempts_of
from floatscope_server.query.memory import NotInMemoryError, now_of
from floatscope_server.query.once import once
from floatscope_server.query.opentail import CHUNK, MOST_CELLS, Chunk, OpenTail, TailKey, new_frames
from floatscope_server.query.stepwise import made_plane
from floatscope_server.query.tilecache import TileCache
from floatscope_server.store.present import StreamNow
from floatscope_server.store.repair import Suspect
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["Latest", "Source", "State", "Tail", "TileReader", "Window", "source_of"]

_ONE_STEP = frozenset({Agg.VALUE, Agg.RANK})


def _nobody(_: Iterable[Suspect]) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far an attempt of a stream is sealed (``stream_state``), how many ranks it has, and its ``last`` step."""

    sealed: int = 0
    epoch: int = 0
    appends: int = 0
    ranks: int = 1
    last: int = -1

    @property
    def version(self) -> int:
        """Another one when anything that was sealed has changed."""
        return self.epoch - self.appends


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream of layers in one snapshot. ``geometry`` is None while nothing of it is sealed."""

    stream: int
    geometry: Geometry | None
    states: dict[int, State]


# Built once: that takes longer than to run it.
_STREAM = (
    select(
        col(Stream.id),
        col(Stream.columns),
        col(Stream.fan),
        col(Stream.block),
        col(Stream.keep_bits),
        col(Stream.keep_bits_pooled),
        col(StreamState.attempt),
        col(StreamState.sealed),
        col(StreamState.epoch),
        col(StreamState.appends),
    )
    .outerjoin(StreamState, col(StreamState.stream_id) == col(Stream.id))
    .where(col(Stream.run_id) == bindparam("run"), col(Stream.name) == bindparam("name"))
)


def source_of(session: Session, run_id: int, name: str) -> Source | None:
    """The stream ``name`` of a run, or None if nothing of it has arrived."""
    now = now_of(session)
    if now is not None:
        stream = now.streams.get(name)
    else:
        stream = once(session, ("stream", run_id, name), lambda: _stream(session, run_id, name))
    if stream is None:
        return None
    states: dict[int, State] = {}
    for n, _, last, world in attempts_of(session, run_id):
        upto, epoch, appends = stream.states.get(n, (0, 0, 0))
        last = -1 if last is None else last
        states[n] = State(sealed=upto, epoch=epoch, appends=appends, ranks=world, last=last)
    columns, fan, block, keep_bits, keep_bits_pooled = stream.geometry
    geometry = None
    if columns is not None:
        geometry = Geometry(
            columns=columns, fan=fan, block=block, keep_bits=keep_bits, keep_bits_pooled=keep_bits_pooled
        )
    return Source(stream=stream.id, geometry=geometry, states=states)


def _stream(session: Session, run_id: int, name: str) -> StreamNow | None:
    """Without its frames."""
    rows = session.connection().execute(_STREAM, {"run": run_id, "name": name}).all()
    if not rows:
        return None
    states = {row.attempt: (row.sealed, row.epoch, row.appends) for row in rows if row.attempt is not None}
    return StreamNow(id=rows[0].id, geometry=tuple(rows[0][1:6]), states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``planes`` [layers, cells] of float32 (float64 where that cannot hold a count); cell i is the ``cell`` steps from
    ``first + i * cell`` on. ``resolution``: steps of the widest column that answers for any of it, more than ``cell``
    where the detail has been dropped. ``damaged``: tiles that cannot be read, whose rows are missing."""

    first: int
    cell: int
    planes: dict[Wanted, Plane]
    resolution: int
    damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """``steps`` [layers] of the newest values, -1 where there is none lately; ``planes`` [layers, 1]."""

    steps: npt.NDArray[np.int64]
    planes: dict[Wanted, Plane]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """``planes`` [layers, steps] of ``steps``, ascending. ``commit``: the newest frame that is in it."""

    steps: npt.NDArray[np.int64]
    planes: dict[Wanted, Plane]
    commit: int


class TileReader:
    """Reads streams of layers, from tiles and from the open tail at once: each question is asked in one session, that
    is, of one snapshot. Keeps at most ``max_bytes`` of the open tails, and three quarters of that of
    what it has decoded beside them; any thread may ask."""

    def __init__(self, max_bytes: int) -> None:
        self.tiles = TileCache(max_bytes // 4)
        self._directory = Directory()
        self._last_tiles: dict[tuple[int, int], tuple[int, int | None]] = {}
        self.histograms = HistTails()
        self.frames = FrameCache(max_bytes // 8)
        self.on_damaged: Callable[[Iterable[Suspect]], None] = _nobody
        """Told of tiles that cannot be read; must not block."""
        # All statistics of 256 steps of 2000 layers take 35 MB, and two such stretches are open.
        self._tail = OpenTail(max_bytes, self.frames)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        held = (self.tiles, self.frames, self.histograms, self._directory, self._tail)
        return sum(each.nbytes for each in held)

    def window(
        self,
        session: Session,
        source: Source,
        line: Sequence[Stretch],
        *,
        first: int,
        last: int,
        cell: int,
        wanted: Collection[Wanted],
        layers: npt.NDArray[np.intp],
    ) -> Window:
        """``wanted`` of ``layers`` (numbers, ascending) over the cells from that of step ``first`` to that of ``last``.

        Cells are whole and lie at multiples of ``cell``, a power of two. ``line`` are the attempts that answer, each
        for its stretch: what an attempt has after a stretch that is ``cut`` does not count. ``VALUE`` and ``RANK``, and
        statistics that only level 0 has, are for cells of one step.
        """
        assert cell == 1 or not any(agg in _ONE_STEP for _, agg in wanted)
        origin = first // cell * cell
        cells = Cells.of(wanted, origin=origin, cell=cell, count=last // cell - first // cell + 1, layers=len(layers))
        resolution, damaged = 1, 0
        for stretch in line:
            low = max(stretch.first // cell * cell, origin)
            end = origin + cells.count * cell
            if stretch.cut:
                end = min(end, stretch.last + 1)
            state = source.states.get(stretch.attempt)
            if low >= end or state is None:
                continue
            if source.geometry is not None and state.sealed > low and len(layers):
                sealed = Sealed(
                    session=session,
                    cache=self.tiles,
                    directory=self._directory,
                    cells=cells,
                    wanted=list(wanted),
                    layers=layers,
                    stream=source.stream,
                    attempt=stretch.attempt,
                    version=state.version,
                    sealed=state.sealed,
                    geometry=source.geometry,
                )
                sealed.read(source.geometry.level_of(cell), low, end)
                resolution, damaged = max(resolution, sealed.coarsest), damaged + len(sealed.damaged)
                if sealed.damaged:
                    self.on_damaged([Suspect(key.table, key.id) for key in sealed.damaged])
            self._add_tail(session, source, stretch.attempt, state, cells, wanted, layers, low, end)
        return Window(
            first=origin,
            cell=cell,
            planes=cells.finish(),
            resolution=max(cell, resolution),
            damaged=damaged,
        )

    def latest(
        self,
        session: Session,
        source: Source,
        attempt: int,
        *,
        wanted: Collection[Wanted],
        layers: npt.NDArray[np.intp],
    ) -> Latest:
        """The newest step of each of ``layers`` in the open tail, or in the last tile of single steps that is there."""
        state = source.states.get(attempt, State())
        found = _Newest(wanted, layers)
        with self._tail.chunks(
            session, _key(source, attempt, state), state.sealed, _END, _stats(wanted) | {Stat.COUNT}
        ) as chunks:
            for chunk in reversed(list(chunks)):
                low, there = max(state.sealed - chunk.first, 0), np.flatnonzero(chunk.present)
                if len(there) and there[-1] >= low:
                    # Most layers are in the newest steps: the others are looked for further back.
                    end = int(there[-1]) + 1
                    near = max(low, end - _NEAR)
                    for start, stop in ((near, end), (low, near)):
                        if (found.steps < 0).any():
                            there_too = int(np.searchsorted(layers, chunk.layers))
                            planes = _cut(chunk, start, stop, layers[:there_too])
                            found.take(chunk.first + start, planes, layers)
        rest = layers[found.steps < 0]
        if source.geometry is not None and state.sealed and len(rest):
            tile = self._last_tile(session, source.stream, attempt, state.epoch)
            if tile is not None:
                first = tile * source.geometry.columns
                end = min(first + source.geometry.columns, state.last + 1)
                near = max(first, end - _NEAR)
                for start, stop in ((near, end), (first, near)):
                    rest = layers[found.steps < 0]
                    if start < stop and len(rest):
                        window = self.window(
                            session,
                            source,
                            [Stretch(attempt=attempt, first=start, last=stop - 1, cut=True)],
                            first=start,
                            last=stop - 1,
                            cell=1,
                            wanted={*wanted, (Stat.COUNT, Agg.VALUE)},
                            layers=rest,
                        )
                        found.take(start, window.planes, rest)
        return Latest(steps=found.steps, planes=found.planes)

    def tail(
        self,
        session: Session,
        source: Source,
        attempt: int,
        *,
        after_step: int,
        after_commit: int | None,
        most: int,
        wanted: Collection[Wanted],
        layers: npt.NDArray[np.intp],
    ) -> Tail:
        """The steps of the open tail that came later: those after ``after_step``, and of these, if ``after_commit`` is
        given, those of which a later frame than that one has anything. The newest ``most`` of them."""
        state = source.states.get(attempt, State())
        commit, touched = _touched(session, source, attempt, state, after_commit)
        steps: list[npt.NDArray[np.int64]] = []
        pieces: list[dict[Wanted, Plane]] = []
        if now_of(session) is not None:
            _require_little(state, after_step, touched, len(layers))
        with self._tail.chunks(
            session, _key(source, attempt, state), max(state.sealed, after_step + 1), _END, _stats(wanted)
        ) as chunks:
            for chunk in reversed(list(chunks)):
                of_chunk = np.arange(chunk.first, chunk.first + CHUNK)
                there = chunk.present & (of_chunk >= state.sealed) & (of_chunk > after_step)
                if touched is not None:
                    there &= _within(of_chunk, touched)
                places = np.flatnonzero(there)[-(most - sum(map(len, steps))) :]
                if not len(places):
                    continue
                steps.insert(0, of_chunk[places])
                start, stop = int(places[0]), int(places[-1]) + 1
                there_too = int(np.searchsorted(layers, chunk.layers))
                planes = _cut(chunk, start, stop, layers[:there_too])
                pieces.insert(
                    0,
                    {
                        what: _lengthened(_made(what, planes, stop - start), len(layers))[:, places - start]
                        for what in wanted
                    },
                )
                if sum(map(len, steps)) >= most:
                    break
        joined = {
            what: np.concatenate([piece[what] for piece in pieces], axis=1) if pieces else empty_plane((len(layers), 0))
            for what in wanted
        }
        return Tail(steps=np.concatenate(steps) if steps else np.empty(0, np.int64), planes=joined, commit=commit)

    def _last_tile(self, session: Session, stream: int, attempt: int, epoch: int) -> int | None:
        """Another one only when what is sealed has changed."""
        held = self._last_tiles.get((stream, attempt))
        if held is None or held[0] != epoch:
            held = epoch, last_tile(session, stream, attempt)
            if len(self._last_tiles) >= _MOST_LAST_TILES:
                self._last_tiles.clear()
            self._last_tiles[stream, attempt] = held
        return held[1]

    def _add_tail(
        self,
        session: Session,
        source: Source,
        attempt: int,
        state: State,
        cells: Cells,
        wanted: Collection[Wanted],
        layers: npt.NDArray[np.intp],
        low: int,
        end: int,
    ) -> None:
        low = max(low, state.sealed)
        if low >= end or not len(layers):
            return
        with self._tail.chunks(session, _key(source, attempt, state), low, end, _stats(wanted)) as chunks:
            for chunk in chunks:
                start, stop = max(low - chunk.first, 0), min(end - chunk.first, CHUNK)
                places = np.flatnonzero(chunk.present[start:stop])
                if not len(places):
                    continue
                start, stop = start + int(places[0]), start + int(places[-1]) + 1
                there = int(np.searchsorted(layers, chunk.layers))
                planes = _cut(chunk, start, stop, layers[:there])
                for what in wanted:
                    values = made_plane(what, planes)
                    if values is None:
                        continue
                    at = chunk.first + start
                    if what[1] == Agg.MEAN:
                        ones = np.broadcast_to(np.float32(1), values.shape)
                        cells.add_mean(what, slice(0, there), values, ones, first=at, width=1)
                    else:
                        cells.add(what, slice(0, there), values, first=at, width=1)


_END = 1 << 62

_NEAR = 8

_MOST_LAST_TILES = 1000


class _Newest:
    """Collects the last observed column of each layer, from new to old."""

    def __init__(self, wanted: Collection[Wanted], layers: npt.NDArray[np.intp]) -> None:
        self.layers = layers
        self.steps = np.full(len(layers), -1, np.int64)
        self.planes: dict[Wanted, Plane] = {what: empty_plane((len(layers), 1)) for what in wanted}

    def take(self, first: int, planes: dict[Wanted, Plane], layers: npt.NDArray[np.intp]) -> None:
        """``planes`` of level 0 from step ``first`` on, of ``layers`` or of the first of them."""
        count = planes.get((Stat.COUNT, Agg.VALUE))
        if count is None or not count.shape[1]:
            return
        rows = np.searchsorted(self.layers, layers[: len(count)])
        observed = ~is_missing(count)
        new = observed.any(axis=1) & (self.steps[rows] < 0)
        at = observed.shape[1] - 1 - np.argmax(observed[:, ::-1], axis=1)
        self.steps[rows[new]] = first + at[new]
        for what, held in self.planes.items():
            made = made_plane(what, planes)
            if made is not None:
                held[rows[new], 0] = made[new, at[new]]


def _key(source: Source, attempt: int, state: State) -> TailKey:
    return TailKey(source.stream, attempt, state.ranks, state.sealed)


def _stats(wanted: Collection[Wanted]) -> set[Stat]:
    return {stat for stat, _ in wanted}


def _cut(chunk: Chunk, start: int, stop: int, layers: npt.NDArray[np.intp]) -> dict[Wanted, Plane]:
    """Of ``layers``, all of which it has."""
    rows = _as_rows(layers)
    return {what: plane[rows, start:stop] for what, plane in chunk.planes.items()}


def _made(what: Wanted, planes: dict[Wanted, Plane], columns: int) -> Plane:
    made = made_plane(what, planes)
    return empty_plane((0, columns)) if made is None else made


def _lengthened(plane: Plane, rows: int) -> Plane:
    """Missing where ``plane`` is too short."""
    if len(plane) == rows:
        return plane
    return np.concatenate((plane, empty_plane((rows - len(plane), plane.shape[1]), plane.dtype)))


def _as_rows(layers: npt.NDArray[np.intp]) -> Rows:
    """Without a copy where that can be."""
    return (
        slice(int(layers[0]), int(layers[-1]) + 1)
        if len(layers) and layers[-1] - layers[0] + 1 == len(layers)
        else layers
    )


def _touched(
    session: Session, source: Source, attempt: int, state: State, after: int | None
) -> tuple[int, list[tuple[int, int]] | None]:
    """The newest frame of the open tail, and the steps (first, end) of those after ``after``."""
    frames = new_frames(session, source.stream, attempt, after=after or 0, sealed=state.sealed)
    newest = max((row.id for row in frames), default=after or 0)
    return newest, None if after is None else [(row.first, row.first + row.n) for row in frames]


def _require_little(state: State, after_step: int, touched: list[tuple[int, int]] | None, layers: int) -> None:
    steps = state.last - max(after_step, state.sealed - 1)
    if touched is not None:
        steps = min(steps, sum(end - first for first, end in touched))
    if steps * layers > MOST_CELLS:
        raise NotInMemoryError


def _within(steps: npt.NDArray[np.int64], stretches: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(steps), np.bool_)
    for first, end in stretches:
        inside |= (steps >= first) & (steps < end)
    return inside
