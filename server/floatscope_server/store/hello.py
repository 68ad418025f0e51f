"""Who may write what: a hello becomes a run, an attempt and a writer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.database import utc
from floatscope_server.declared import declared
from floatscope_server.jsontext import plain
from floatscope_server.models import Attempt, Run, StepEvent, Writer
from floatscope_server.settings import Settings
from floatscope_server.store.batch import Batch
from floatscope_server.store.glance import Glance
from floatscope_server.store.judged_hosts import verdicts_of
from floatscope_server.store.layermap import LayerMap
from floatscope_server.store.ledger import KnownRun, KnownWriter, Ledger, writer_of
from floatscope_server.store.parts import MAX_RANK, NANOSECONDS

__all__ = ["greet", "read_by", "refusal"]

_WRITER = re.compile(r"[0-9a-f]{32}")
_MAX_ATTEMPT = 1 << 20
_MAX_AGENT = 100
_MAX_DEPTH = 64
_TOGETHER_S = 600.0
"""Processes of one start begin within this time of each other: hosts of a job may wait for each other's data."""


def refusal(hello: wire.Hello) -> wire.Refused | None:
    """Why a hello cannot be taken whatever the store holds, or None."""
    identity = hello.identity
    if hello.protocol_min > wire.PROTOCOL or hello.protocol_max < wire.PROTOCOL_MIN:
        return wire.Refused(
            code="protocol",
            message=f"the agent speaks protocol {hello.protocol_min} to {hello.protocol_max}, this server "
            f"{wire.PROTOCOL_MIN} to {wire.PROTOCOL}",
            hint="install the same release of floatscope on both sides: "
            + ("upgrade the server" if hello.protocol_min > wire.PROTOCOL else "upgrade the agent"),
        )
    if not wire.is_run_name(identity.run):
        return wire.Refused(
            code="run_name",
            message=f"{identity.run[:60]!r} cannot be a run's name",
            hint=f"use 1 to {wire.MAX_RUN_NAME} printable characters without slashes (FLOATSCOPE_RUN)",
        )
    if not _WRITER.fullmatch(identity.writer):
        return wire.Refused(
            code="writer",
            message="the writer is not 32 hexadecimal digits",
            hint="this is an agent's mistake: report it",
        )
    if not (
        0 <= identity.rank < MAX_RANK and 1 <= identity.world <= MAX_RANK and abs(identity.attempt) <= _MAX_ATTEMPT
    ):
        return wire.Refused(
            code="identity",
            message=f"rank {identity.rank} of {identity.world}, attempt {identity.attempt} is out of range",
            hint="check RANK and WORLD_SIZE of the training process",
        )
    return None


def greet(
    batch: Batch, session: Session, ledger: Ledger, settings: Settings, hello: wire.Hello, *, now: float
) -> KnownWriter | wire.Refused:
    """The writer of ``hello``, made if it is new; its run and attempt too."""
    identity = hello.identity
    known = ledger.of_writer(session, identity.writer)
    unfit: dict[str, str] = {}
    if known is not None:
        run, writer = known
        if run.name != identity.run:
            return wire.Refused(
                code="writer",
                message=f"this writer belongs to the run {run.name!r}, not to {identity.run!r}",
                hint="start the agent again; a writer never changes its run",
            )
        if writer.rank != identity.rank or run.worlds[writer.attempt] < identity.world:
            return wire.Refused(
                code="writer",
                message=f"this writer is rank {writer.rank} of {run.worlds[writer.attempt]}, "
                f"not {identity.rank} of {identity.world}",
                hint="start the agent again; a writer never changes its rank nor the world's size",
            )
    else:
        found = ledger.run(session, identity.run)
        if found is None:
            if session.exec(select(func.count()).select_from(Run)).one() >= settings.max_runs:
                return wire.Refused(
                    code="too_many_runs",
                    message=f"the store holds {settings.max_runs} runs, which is its limit",
                    hint="use another data folder, or another name for the run",
                )
            config, unfit = _fit(hello.config)
            found = _new_run(session, ledger.numbers.next(session, Run), hello, config, now)
        run = found
        began = _began(hello, now)
        attempt = identity.attempt or _inferred(run, hello, began)
        if attempt not in run.attempts:
            config, unfit = _fit(hello.config)
            first = session.exec(select(Run.config).where(Run.id == run.id)).one()
            own = None if config == first else config
            _new_attempt(session, run, attempt, identity, began, now, own)
            if attempt == run.attempt:
                run.glance.declared = declared(config)
        writer = _new_writer(session, run, attempt, hello, now)
        ledger.add(run, writer)
    writer.seen_at = now
    if not hello.gone:
        writer.bye = None  # whoever follows a log goes on where it said goodbye
        # What trains is for all to see.
        session.execute(
            update(Run).where(col(Run.id) == run.id, col(Run.archived_at).is_not(None)).values(archived_at=None)
        )
    run.worlds[writer.attempt] = max(run.worlds[writer.attempt], _world(identity))
    batch.touch(run, writer)
    batch.name_layers(run, writer, hello.layers)
    for name, reason in unfit.items():
        batch.omit(run, writer, f"configuration key {name[:40]!r} {reason}")
    return writer


def read_by(session: Session, pending: Sequence[Mapping[str, Any]], writer: KnownWriter) -> dict[str, Any]:
    """Detail of the newest event with which ``writer`` said how far it has read a log, empty without one. ``pending``:
    events of this transaction, oldest first."""
    for event in reversed(pending):
        if event["writer"] == writer.number and event["kind"] == "read":
            return dict(event["detail"])
    if not writer.last_seq:
        return {}
    # By the run, of which there is an index.
    run_id = select(Writer.run_id).where(Writer.id == writer.id).scalar_subquery()
    found = session.exec(
        select(StepEvent.detail)
        .where(StepEvent.run_id == run_id, StepEvent.writer == writer.number, StepEvent.kind == "read")
        .order_by(col(StepEvent.id).desc())
        .limit(1)
    ).first()
    return {} if found is None else dict(found)


def _began(hello: wire.Hello, now: float) -> float:
    """When the writer began, by this clock: its age is by its own, which may be a day off."""
    started = hello.identity.started_ns
    age = (hello.wall_ns - started) / NANOSECONDS if started else 0.0
    return now - max(0.0, min(age, now))


def _inferred(run: KnownRun, hello: wire.Hello, began: float) -> int:
    """The current attempt, or the next one if another process of this rank is in it. One before the current attempt
    for a process that is gone and began before that did: the run goes on, whoever sends what it left.
    """
    rank = hello.identity.rank

    def has_room(attempt: int) -> bool:
        return not any(w.rank == rank and w.attempt == attempt for w in run.writers.values())

    before = run.began.get(run.attempt, began) - began if hello.gone else 0.0
    if has_room(run.attempt) and before <= _TOGETHER_S:
        return run.attempt
    if before <= 0:
        return run.attempt + 1
    apart = {n: abs(since - began) for n, since in run.began.items() if n < run.attempt and has_room(n)}
    nearest = min(apart, key=apart.__getitem__, default=None)
    if nearest is not None and apart[nearest] <= _TOGETHER_S:
        return nearest
    # Numbers are not given anew: this one comes before all that were.
    return min(*run.attempts, 1) - 1


def _world(identity: wire.Identity) -> int:
    """How many ranks there are at least: where RANK is set and WORLD_SIZE is not, there are more than one."""
    return max(identity.world, identity.rank + 1)


def _fit(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The part of ``config`` that JSON can hold, and why each other key is left out."""
    unfit = {name: reason for name, value in config.items() if (reason := _unfit(value, _MAX_DEPTH)) is not None}
    return {name: plain(value) for name, value in config.items() if name not in unfit}, unfit


def _unfit(value: object, room: int) -> str | None:
    if value is None or isinstance(value, str | int | float | datetime):
        return None
    if not isinstance(value, Mapping | list | tuple):
        return f"holds {type(value).__name__}"
    if not room:
        return f"is nested deeper than {_MAX_DEPTH}"
    items = value.values() if isinstance(value, Mapping) else value
    return next((reason for item in items if (reason := _unfit(item, room - 1)) is not None), None)


def _new_run(session: Session, number: int | None, hello: wire.Hello, config: dict[str, Any], now: float) -> KnownRun:
    row = Run(
        id=number,
        name=hello.identity.run,
        state="live",
        attempt=hello.identity.attempt or 1,
        world=_world(hello.identity),
        config=config,
        created_at=utc(now),
        started_at=utc(now),
        heartbeat_at=utc(now),
        progress_at=utc(now),
    )
    session.add(row)
    session.flush()
    assert row.id is not None
    return KnownRun(
        id=row.id,
        name=row.name,
        state=row.state,
        attempt=row.attempt,
        steps=0,
        layers={},
        names={},
        streams={},
        attempts={},
        worlds={},
        writers={},
        glance=Glance(),
        progress_at=now,
    )


def _new_attempt(
    session: Session,
    run: KnownRun,
    attempt: int,
    identity: wire.Identity,
    began: float,
    now: float,
    config: dict[str, Any] | None,
) -> None:
    over = bool(run.attempts) and attempt < run.attempt
    if attempt > run.attempt:
        session.execute(
            update(Attempt)
            .where(col(Attempt.run_id) == run.id, col(Attempt.ended_at).is_(None))
            .values(ended_at=utc(now), end_reason="superseded")
        )
        run.attempt = attempt
        run.progress_at = now
    run.worlds[attempt] = _world(identity)
    row = Attempt(run_id=run.id, n=attempt, world=run.worlds[attempt], started_at=utc(began), config=config)
    if over:
        row.ended_at, row.end_reason = utc(now), "superseded"
    session.add(row)
    session.flush()
    run.attempts[attempt] = (None, None)
    run.began[attempt] = began


def _new_writer(session: Session, run: KnownRun, attempt: int, hello: wire.Hello, now: float) -> KnownWriter:
    host, verdicts = verdicts_of(session, run.id, attempt, hello.config)
    row = Writer(
        id=hello.identity.writer,
        run_id=run.id,
        attempt=attempt,
        rank=hello.identity.rank,
        agent=hello.agent[:_MAX_AGENT],
        last_seen_at=utc(now),
        clock_offset_ms=1e3 * (hello.wall_ns / NANOSECONDS - now),
        host=host,
        doctor=verdicts,
    )
    session.add(row)
    session.flush()
    return replace(writer_of(row), layer_map=LayerMap.empty())
