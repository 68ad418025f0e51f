"""Observations made again from what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import or_
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, func, select

from floatscope import wire
from floatscope_server.models import CONTINUED, Attempt, LayerRow, Run, StepEvent, Stream, WalFrame, Writer
from floatscope_server.observation import ALL_RANKS, Observation
from floatscope_server.store.framed import devices_of, histograms_of, scalars_of, summaries_of
from floatscope_server.store.ledger import layer_of

__all__ = ["WARM_UP_STEPS", "replay", "replay_since"]

_T = TypeVar("_T")

WARM_UP_STEPS = 300
"""Steps that the rules want again before those they have yet to judge; the newest so many are not sealed."""


def replay(session: Session, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
    """Bodies as they were committed, in the order of arrival.

    A block is left out if it holds nothing of the last ``last_steps`` steps. Readings of cards are those that are not
    in chunks yet, of 15 minutes or more.
    """
    run = session.get(Run, run_id)
    span = session.get(Attempt, (run_id, attempt))
    if run is None or span is None or span.last_step is None:
        return
    since = span.last_step - last_steps + 1
    layers = {row.idx: layer_of(row) for row in session.exec(select(LayerRow).where(LayerRow.run_id == run_id))}
    left = _events(session, run_id, attempt, since)
    frames = session.execute(
        select_columns(
            WalFrame.__table__,  # type: ignore[attr-defined]
            col(Stream.name).label("stream"),
            col(Writer.id).label("writer_id"),
        )
        .join(Stream, col(Stream.id) == col(WalFrame.stream_id))
        .join(Writer, col(Writer.number) == col(WalFrame.writer))
        .where(
            col(Stream.run_id) == run_id,
            col(WalFrame.attempt) == attempt,
            or_(col(Stream.name) == "gpu", col(WalFrame.first) + col(WalFrame.n) > since),
        )
        .order_by(col(WalFrame.id))
    )

    def observation(
        writer: str, rank: int, seq: int, body: wire.Body, merged: tuple[wire.Scalars, ...] = ()
    ) -> Observation:
        return Observation(
            run_id=run_id,
            run=run.name,
            attempt=attempt,
            rank=rank,
            writer=writer,
            seq=seq,
            world=span.world,
            body=body,
            layers=layers,
            merged=merged,
        )

    ranks = {row.id: row.rank for row in session.exec(select(Writer).where(Writer.run_id == run_id))}
    for (writer, seq), group in groupby(frames, key=lambda f: (f.writer_id, f.seq)):
        found, rank = list(group), ranks[writer]
        mine = left.get((writer, rank), {})
        for earlier in [known for known in mine if known < seq]:
            yield observation(writer, rank, earlier, _body([], tuple(mine.pop(earlier))))
        merged = tuple(s for f in found if f.rank == ALL_RANKS for s in scalars_of(f.data) or ())
        own = [frame for frame in found if frame.rank != ALL_RANKS]
        yield observation(writer, rank, seq, _body(own, tuple(mine.pop(seq, ()))), merged)
    for (writer, rank), mine in left.items():
        for seq, events in mine.items():
            yield observation(writer, rank, seq, _body([], tuple(events)))


def replay_since(session: Session, writer_id: str, seq: int) -> list[Observation]:
    """Of one writer, what it sent after the block ``seq``."""
    writer = session.exec(select(Writer).where(Writer.id == writer_id)).one_or_none()
    if writer is None or writer.last_seq <= seq:
        return []
    frames = select(func.min(WalFrame.first)).where(WalFrame.writer == writer.number, WalFrame.seq > seq)
    events = select(func.min(StepEvent.step)).where(StepEvent.writer == writer.number, StepEvent.seq > seq)
    found: list[int | None] = [session.exec(frames).one(), session.exec(events).one()]
    firsts = [first for first in found if first is not None]
    attempt = session.get(Attempt, (writer.run_id, writer.attempt))
    if not firsts or attempt is None or attempt.last_step is None:
        return []
    last_steps = max(attempt.last_step - min(firsts) + 1, 1)
    again = replay(session, writer.run_id, writer.attempt, last_steps=last_steps)
    return [each for each in again if each.writer == writer_id and each.seq > seq]


def _events(
    session: Session, run_id: int, attempt: int, since: int
) -> dict[tuple[str, int], dict[int, list[wire.Event]]]:
    """By writer and rank, then by seq in order: a block may hold nothing else."""
    events: dict[tuple[str, int], dict[int, list[wire.Event]]] = {}
    rows = session.exec(
        select(StepEvent, Writer.id)
        .join(Writer, col(Writer.number) == col(StepEvent.writer))
        .where(StepEvent.run_id == run_id, StepEvent.attempt == attempt, StepEvent.step >= since)
        .order_by(col(StepEvent.id))
    )
    for row, writer in rows:
        of_writer = events.setdefault((writer, row.rank), {})
        of_writer.setdefault(row.seq, []).append(wire.Event(step=row.step, kind=row.kind, detail=row.detail))
    return events


def _body(frames: list[Any], events: tuple[wire.Event, ...]) -> wire.Body:
    devices = tuple(d for f in frames if f.stream == "gpu" for d in devices_of(f.data) or ())
    frames = [frame for frame in frames if frame.stream != "gpu"]
    if not frames and not events:
        return wire.Body(devices=devices)
    first = min([*(frame.first for frame in frames), *(event.step for event in events)])
    last = max([*(frame.first + frame.n - 1 for frame in frames), *(event.step for event in events)])
    return wire.Body(
        first_step=first,
        steps=last - first + 1,
        devices=devices,
        summaries=_sound(summaries_of(f.data) for f in frames if f.stream.startswith("layer/")),
        histograms=_sound(histograms_of(f.data) for f in frames if f.stream.startswith("hist/")),
        scalars=tuple(s for f in frames if f.stream == "scalar" for s in scalars_of(f.data) or ()),
        events=events,
        continued=any(frame.flags & CONTINUED for frame in frames),
    )


def _sound(parts: Iterable[_T | None]) -> tuple[_T, ...]:
    """Those that are not damaged."""
    return tuple(part for part in parts if part is not None)
