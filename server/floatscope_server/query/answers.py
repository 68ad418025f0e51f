"""Answers that are made once, for all who ask the same: a tag for each, kept while there is room."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Response
from sqlalchemy import bindparam, func, select
from sqlmodel import Session, col

from floatscope_server.models import Run, Stream, StreamState, WalFrame
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.line import attempts_of, line_of, span_of, stream_id
from floatscope_server.query.memory import now_of
from floatscope_server.query.ranks import reach_of
from floatscope_server.query.window import State, source_of

__all__ = ["Answers", "Flights", "Tagged", "newest_tag", "window_tag"]

_SETTLED = "private, max-age=60, stale-while-revalidate=600"
"""For what is sealed: only what comes late, or a format that becomes known, changes it."""

_OPEN = "private, no-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """An answer that ``make`` makes. ``tag`` is another one whenever the answer may be; ``settled``: it will hardly
    change any more."""

    tag: str
    settled: bool
    make: Callable[[], Response]


class Answers:
    """Bodies by tag, the least recently used going first."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._held: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        self._lock = threading.Lock()
        self.made = 0
        """How many were computed."""

    def respond(self, answer: Tagged, known: str) -> Response:
        """The response to somebody who has those that the header If-None-Match ``known`` names."""
        etag = f'"{answer.tag}"'
        headers = {"etag": etag, "cache-control": _SETTLED if answer.settled else _OPEN, "vary": "accept"}
        if etag in (part.strip().removeprefix("W/") for part in known.split(",")):
            return Response(status_code=304, headers=headers)
        with self._lock:
            held = self._held.get(etag)
            if held is not None:
                self._held.move_to_end(etag)
        if held is None:
            made = answer.make()
            held = bytes(made.body), made.media_type or ""
            self.made += 1
            self._keep(etag, held)
        return Response(held[0], media_type=held[1], headers=headers)

    def _keep(self, etag: str, held: tuple[bytes, str]) -> None:
        with self._lock:
            if len(held[0]) > self._max or etag in self._held:
                return
            self._held[etag] = held
            self._bytes += len(held[0])
            while self._bytes > self._max:
                _, (body, _) = self._held.popitem(last=False)
                self._bytes -= len(body)


class Flights:
    """Questions that wait for their turn: who asks the same before it has come shares the answer. What has begun is
    not shared: its snapshot may be older than the question."""

    def __init__(self) -> None:
        self._waiting: dict[object, asyncio.Future[Response]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, key: object, answer: Callable[[Callable[[], None]], Awaitable[Response]]) -> Response:
        """What ``answer`` returns, or raises; it calls what it is given once its turn has come."""
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._fly(key, future, answer))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        # Who goes away takes nobody's answer along.
        return await asyncio.shield(future)

    async def _fly(
        self,
        key: object,
        future: asyncio.Future[Response],
        answer: Callable[[Callable[[], None]], Awaitable[Response]],
    ) -> None:
        def begin() -> None:
            if self._waiting.get(key) is future:
                del self._waiting[key]

        try:
            result = await answer(begin)
        except BaseException as error:  # noqa: BLE001 - raised to all who wait
            future.set_exception(error)
            # Who asked may be gone: then nobody looks at it.
            future.exception()
        else:
            future.set_result(result)
        finally:
            begin()


def window_tag(
    session: Session,
    run: Run,
    *,
    store: str,
    question: object,
    kind: str,
    attempt: int | None,
    first: int | None,
    last: int | None,
    also: Sequence[str] = (),
    histograms: bool = False,
) -> tuple[str, bool]:
    """A tag for ``question`` (all that was asked) about steps ``first`` to ``last`` of a kind, and whether all of them
    are sealed. ``store`` is the epoch of the store; ``histograms``: the answer is made of them too, and of the kinds
    ``also``."""
    assert run.id is not None
    if also:
        each = partial(
            window_tag, session, run, store=store, question=question, attempt=attempt, first=first, last=last
        )
        tags = [each(kind=kind, histograms=histograms), *(each(kind=other) for other in also)]
        return _digest([tag for tag, _ in tags]), all(settled for _, settled in tags)
    line = line_of(session, run.id, attempt)
    span = span_of(line, first, last)
    source = source_of(session, run.id, f"layer/{kind}")
    reach = reach_of(session, run, attempt)
    parts: list[object] = [store, run.id, question, span, run_layers(session, run.id).digest]
    settled = False
    if histograms:
        stream = stream_id(session, run.id, f"hist/{kind}")
        of_stream = col(WalFrame.stream_id) == stream, col(StreamState.stream_id) == stream
        parts.append(session.execute(select(func.max(WalFrame.id)).where(of_stream[0])).scalar())
        parts.append(session.execute(select(func.sum(StreamState.epoch)).where(of_stream[1])).scalar())
    if source is not None and span is not None:
        touched = [stretch for stretch in line if stretch.first <= span[1] and stretch.last >= span[0]]
        states = [source.states.get(stretch.attempt, State()) for stretch in touched]
        parts += [source.stream, [(s.attempt, s.first, min(s.last, span[1])) for s in touched]]
        settled = all(min(s.last, span[1]) < state.sealed for s, state in zip(touched, states, strict=True))
        if not settled:
            newest = select(func.max(WalFrame.id)).where(col(WalFrame.stream_id) == source.stream)
            parts += [session.execute(newest).scalar(), [state.sealed for state in states]]
        # Sealing what comes later changes nothing of what is settled.
        parts.append([(state.version if settled else state.epoch, state.ranks) for state in states])
        complete = reach.complete_to
        parts += [reach.world, reach.missing, None if complete is None else min(complete, span[1])]
    # Histograms are sealed apart, and later.
    return _digest(parts), settled and last is not None and not histograms


_STATES = (
    select(col(Stream.id), col(StreamState.attempt), col(StreamState.sealed), col(StreamState.epoch))
    .join(StreamState, col(StreamState.stream_id) == col(Stream.id))
    .where(col(Stream.run_id) == bindparam("run"), col(Stream.name).in_(bindparam("names", expanding=True)))
    .order_by(col(Stream.id), col(StreamState.attempt))
)
_NEWEST = select(func.max(WalFrame.id)).where(col(WalFrame.stream_id) == bindparam("stream"))


def newest_tag(session: Session, runs: Sequence[Run], *, store: str, question: object, streams: Sequence[str]) -> str:
    """A tag for ``question`` about all that ``streams`` (names) of ``runs`` have, another one with each frame of them;
    ``store`` is the epoch of the store."""
    parts: list[object] = [store, question]
    for run in runs:
        assert run.id is not None
        states, newest, attempts = _newest(session, run.id, streams)
        reach = reach_of(session, run).meta()
        parts.append((run.id, run.attempt, states, newest, attempts, reach, run_layers(session, run.id).digest))
    return _digest(parts)


_State = tuple[int, int, int, int]
"""Stream, attempt, sealed, epoch."""


def _newest(
    session: Session, run_id: int, streams: Sequence[str]
) -> tuple[list[_State], list[int | None], list[tuple[int, int | None, int | None]]]:
    """The states of ``streams``, the newest frame of each, and the attempts: number, first and last step."""
    attempts = [(each.n, each.first_step, each.last_step) for each in attempts_of(session, run_id)]
    now = now_of(session)
    if now is not None:
        found = sorted((now.streams[name] for name in set(streams) & now.streams.keys()), key=lambda each: each.id)
        states = [(of.id, n, of.states[n][0], of.states[n][1]) for of in found for n in sorted(of.states)]
        ids = [of.frames[-1].id if of.frames else None for of in found if of.states]
        return states, ids, attempts
    connection = session.connection()
    asked = {"run": run_id, "names": list(streams)}
    rows: Any = connection.execute(_STATES, asked)
    states = [(of, n, sealed, epoch) for of, n, sealed, epoch in rows]
    ids = [connection.execute(_NEWEST, {"stream": of}).scalar() for of in dict.fromkeys(row[0] for row in states)]
    return states, ids, attempts


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
