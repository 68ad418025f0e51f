"""What there is of the runs that people look at, in memory: as the database has it after each commit.

The writer thread alone writes to the store, so it knows what has changed: it renews what is kept with every commit
before anybody is told of it. What a job has written that does not say of which stream it is makes all be forgotten.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, event, select
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, SQLModel

from floatscope_server.database import StoreError
from floatscope_server.frame import Frame
from floatscope_server.models import Run
from floatscope_server.store.batch import Batch
from floatscope_server.store.framed import sound_frame
from floatscope_server.store.ledger import KnownRun
from floatscope_server.store.lifecycle import DELETED

__all__ = ["AttemptNow", "FrameNow", "Present", "RunNow", "SeriesNow", "StreamNow", "concerns"]

_MOST = 16
"""Runs that are kept."""
_UNASKED_S = 30.0
"""After which nobody looks at a run any more."""
_UNPROVED_S = 3.0
"""Where the lock on the database can be lost unnoticed: as old as the writer's last transaction may be. There is one
every second."""

_TABLES = {"run", "attempt", "writer", "stream", "stream_state", "wal_frame", "scalar_series"}
_OF_RUNS = {"run", "attempt", "writer"}
_WRITES = re.compile(r'\s*(?:INSERT(?: OR \w+)? INTO|UPDATE|DELETE FROM)\s+"?(\w+)')
_READS = ("SELECT", "PRAGMA", "SAVEPOINT", "RELEASE", "BEGIN")
_KEY = "floatscope_concerned"


class AttemptNow(NamedTuple):
    """As ``models.Attempt``."""

    n: int
    first_step: int | None
    last_step: int | None
    world: int


class FrameNow(NamedTuple):
    """As ``models.WalFrame``."""

    id: int
    attempt: int
    first: int
    n: int
    rank: int


class SeriesNow(NamedTuple):
    """As ``models.ScalarSeries``, of scalars."""

    attempt: int
    rank: int
    name: str
    n: int
    first_step: int
    last_step: int
    last: float | None
    min: float | None
    max: float | None
    ordered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNow:
    """A stream. ``geometry``: columns, fan, block, and the bits kept; ``states``: sealed, epoch and appends by attempt;
    ``frames`` in the order of their numbers."""

    id: int
    geometry: tuple[Any, ...] = (None, 0, 0, 0, 0)
    states: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    frames: tuple[FrameNow, ...] = ()

    def with_frames(self, frames: Iterable[FrameNow]) -> StreamNow:
        """And those that have come."""
        joined = (*self.frames, *frames)
        # The first frame of an attempt makes its state.
        states = {**{frame.attempt: (0, 0, 0) for frame in frames}, **self.states}
        return replace(self, frames=joined, states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run. ``row`` has its number, name, state, attempt and world, and nothing else that holds; ``attempts`` are in
    order, ``last_steps`` by attempt and rank, ``series`` by attempt, rank and name."""

    row: Run
    attempts: tuple[AttemptNow, ...]
    streams: Mapping[str, StreamNow]
    last_steps: Mapping[int, Mapping[int, int]]
    series: Mapping[tuple[int, int, str], SeriesNow]


@dataclass(slots=True)
class _Held:
    now: RunNow
    asked: float


class Present:
    """The runs that were asked for lately. ``shared``: the database is one that another server may take over.

    ``keep`` gets the number, the content and the bytes of each frame of layers that comes for one of them.
    """

    def __init__(self, *, shared: bool) -> None:
        self.keep: Callable[[int, Frame, int], object] = lambda *_: None
        self._shared = shared
        self._held: dict[str, _Held] = {}
        self._wanted: set[str] = set()
        self._lock = threading.Lock()
        self._touched: set[str] = set()
        self._proved = 0.0

    # Anybody.

    def of(self, name: str) -> RunNow | None:
        """As of the last commit; None if it is not kept."""
        held = self._held.get(name)
        if held is None:
            return None
        at = time.monotonic()
        if self._shared and at - self._proved > _UNPROVED_S:
            return None
        held.asked = at
        return held.now

    def want(self, name: str) -> bool:
        """Whether ``load`` should be called for a run that exists; once, until it has been."""
        with self._lock:
            if name in self._wanted or name in self._held:
                return False
            self._wanted.add(name)
            return True

    # The writer thread.

    def watch(self, connection: Connection) -> None:
        """Notice what is written over ``connection``."""
        event.listen(connection, "before_cursor_execute", self._executing)

    def proved(self) -> None:
        """The database is still this server's."""
        self._proved = time.monotonic()

    def forget(self) -> None:
        """All of it."""
        with self._lock:
            self._held.clear()
            self._wanted.clear()

    def load(self, connection: Connection, name: str) -> None:
        """Keep the run ``name`` from now on, if there is one."""
        with self._lock:
            self._wanted.discard(name)
        with connection.begin():
            now = _run_now(connection, name)
        if now is None:
            return
        self._put(name, now)
        at = time.monotonic()
        old = sorted(self._held, key=lambda each: self._held[each].asked)
        for each in old:
            if len(self._held) > _MOST or at - self._held[each].asked > _UNASKED_S:
                del self._held[each]

    def begin_job(self, session: Session) -> None:
        """What is written from here on is that of a job with ``session``."""
        self._touched.clear()
        session.info[_KEY] = set()

    def end_job(self, session: Session, connection: Connection) -> None:
        """It is committed: renew what it has changed, or forget it. Never fails: the job has not."""
        concerned: set[tuple[int, int]] = session.info[_KEY]
        self.proved()
        if not self._held or not self._touched:
            return
        if not concerned or self._touched & _OF_RUNS:
            self.forget()
            return
        for name, held in list(self._held.items()):
            streams = {stream for run, stream in concerned if run == held.now.row.id}
            if streams and name in self._held:
                self._renew_streams(connection, name, streams)

    def numbers(self, connection: Connection, batch: Batch) -> list[int]:
        """Those of the frames of ``batch``, which has written them; none where nobody wants to know."""
        if not batch.rows or not self._kept(batch):
            return []
        return sorted(connection.execute(_NEWEST, {"most": len(batch.rows)}).scalars())

    def committed(self, batch: Batch, numbers: Sequence[int]) -> None:
        """Take in what ``batch`` has written; ``numbers`` are those of its frames."""
        self.proved()
        kept = self._kept(batch)
        if not kept:
            return
        streams: dict[int, list[FrameNow]] = {}
        watched = {stream for run in kept.values() for stream in run.streams.values()}
        for number, row, part in zip(numbers, batch.rows, batch.parts, strict=True):
            if row["stream_id"] not in watched:
                continue
            frame = FrameNow(number, row["attempt"], row["first"], row["n"], row["rank"])
            streams.setdefault(row["stream_id"], []).append(frame)
            if part is not None:
                content = sound_frame(part)
                if content is not None:
                    self.keep(number, content, sum(each.nbytes for each in content.fields.values()))
        at = time.monotonic()
        for run in kept.values():
            held = self._held[run.name]
            if at - held.asked > _UNASKED_S:
                del self._held[run.name]
                continue
            held.now = _renewed(held.now, run, batch, streams)

    def _kept(self, batch: Batch) -> dict[int, KnownRun]:
        return {run.id: run for run in batch.changed.values() if run.name in self._held} if self._held else {}

    def _put(self, name: str, now: RunNow) -> None:
        before = self._held.get(name)
        self._held[name] = _Held(now, time.monotonic() if before is None else before.asked)

    def _renew_streams(self, connection: Connection, name: str, streams: set[int]) -> None:
        held = self._held[name]
        try:
            with connection.begin():
                fresh = _streams(connection, {"run": held.now.row.id}, streams)
        except (DBAPIError, StoreError):
            # Whoever writes next meets it too.
            self.forget()
            return
        held.now = replace(held.now, streams={**held.now.streams, **fresh})

    def _executing(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith(_READS):
            return
        found = _WRITES.match(statement)
        # Of what is not understood anything may have been changed.
        table = found[1] if found else "run"
        if table in _TABLES:
            self._touched.add(table)


def concerns(session: Session, run_id: int, stream_id: int) -> None:
    """Say that a job writes of this stream, and of no other that it does not name too."""
    session.info.setdefault(_KEY, set()).add((run_id, stream_id))


def _renewed(now: RunNow, run: KnownRun, batch: Batch, came: Mapping[int, Sequence[FrameNow]]) -> RunNow:
    streams = dict(now.streams)
    for name, number in run.streams.items():
        if number in came:
            streams[name] = streams.get(name, StreamNow(id=number)).with_frames(came[number])
    last_steps = dict(now.last_steps)
    for writer in batch.writers_of(run):
        if writer.last_step >= 0:
            known = last_steps.get(writer.attempt, {})
            newest = max(writer.last_step, known.get(writer.rank, -1))
            last_steps[writer.attempt] = {**known, writer.rank: newest}
    series = now.series
    if renewed := batch.renewed.get(run.id):
        series = {**series}
        for (attempt, rank, name), of in renewed.items():
            series[attempt, rank, name] = SeriesNow(
                attempt,
                rank,
                name,
                of.n,
                of.first_step,
                of.last_step,
                _known(of.last),
                _known(of.min),
                _known(of.max),
                of.ordered,
            )
    return RunNow(
        row=_row(run.id, run.name, run.state, run.attempt, run.world),
        attempts=tuple(AttemptNow(n, *run.attempts[n], run.worlds[n]) for n in sorted(run.attempts)),
        streams=streams,
        last_steps=last_steps,
        series=series,
    )


def _row(number: int, name: str, state: str, attempt: int, world: int) -> Run:
    values: dict[str, Any] = {"id": number, "name": name, "state": state, "attempt": attempt, "world": world}
    return Run(**values)


def _known(figure: float) -> float | None:
    """None for a NaN, as the database has it."""
    return None if figure != figure else figure


def _columns(name: str) -> Any:  # noqa: ANN401 - columns of a table
    return SQLModel.metadata.tables[name].c


# Built once: that takes longer than to run them.
_R, _A, _W, _S, _T, _F, _N = map(
    _columns, ("run", "attempt", "writer", "stream", "stream_state", "wal_frame", "scalar_series")
)
_NEWEST = select(_F.id).order_by(_F.id.desc()).limit(bindparam("most"))
_RUN = select(_R.id, _R.name, _R.state, _R.attempt, _R.world).where(_R.name == bindparam("name"), _R.state != DELETED)
_OF_RUN: Any = bindparam("run")
_ATTEMPTS = select(_A.n, _A.first_step, _A.last_step, _A.world).where(_A.run_id == _OF_RUN).order_by(_A.n)
_WRITERS = select(_W.attempt, _W.rank, _W.last_step).where(_W.run_id == _OF_RUN, _W.last_step >= 0)
_STREAMS = select(_S.name, _S.id, _S.columns, _S.fan, _S.block, _S.keep_bits, _S.keep_bits_pooled).where(
    _S.run_id == _OF_RUN
)
_OF_STREAMS: Any = bindparam("streams", expanding=True)
_STATES = select(_T.stream_id, _T.attempt, _T.sealed, _T.epoch, _T.appends).where(_T.stream_id.in_(_OF_STREAMS))
_FRAMES = (
    select(_F.stream_id, _F.id, _F.attempt, _F.first, _F.n, _F.rank)
    .where(_F.stream_id.in_(_OF_STREAMS))
    .order_by(_F.id)
)
_SERIES = select(
    _N.attempt,
    _N.rank,
    _N.name,
    _N.n,
    _N.first_step,
    _N.last_step,
    _N.last,
    _N.min,
    _N.max,
    _N.ordered,
).where(_N.run_id == _OF_RUN, _N.stream == "scalar")


def _run_now(connection: Connection, name: str) -> RunNow | None:
    found = connection.execute(_RUN, {"name": name}).one_or_none()
    if found is None:
        return None
    asked = {"run": found.id}
    last_steps: dict[int, dict[int, int]] = {}
    for attempt, rank, last in connection.execute(_WRITERS, asked):
        of_attempt = last_steps.setdefault(attempt, {})
        of_attempt[rank] = max(last, of_attempt.get(rank, -1))
    return RunNow(
        row=_row(*found),
        attempts=tuple(AttemptNow(*row) for row in connection.execute(_ATTEMPTS, asked)),
        streams=_streams(connection, asked, None),
        last_steps=last_steps,
        series={row[:3]: SeriesNow._make(row) for row in connection.execute(_SERIES, asked)},
    )


def _streams(connection: Connection, asked: Mapping[str, object], numbers: set[int] | None) -> dict[str, StreamNow]:
    """All, or those with ``numbers``."""
    rows = [row for row in connection.execute(_STREAMS, asked) if numbers is None or row.id in numbers]
    of = {"streams": [row.id for row in rows]}
    states: dict[int, dict[int, tuple[int, int, int]]] = {}
    for stream, attempt, *state in connection.execute(_STATES, of):
        states.setdefault(stream, {})[attempt] = (state[0], state[1], state[2])
    frames: dict[int, list[FrameNow]] = {}
    for stream, *frame in connection.execute(_FRAMES, of):
        frames.setdefault(stream, []).append(FrameNow(*frame))
    return {
        name: StreamNow(
            id=number,
            geometry=tuple(geometry),
            states=states.get(number, {}),
            frames=tuple(frames.get(number, ())),
        )
        for name, number, *geometry in rows
    }
