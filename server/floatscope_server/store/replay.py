"""Observations made again from what is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.models import Attempt, LayerRow, Run, StepEvent, Stream, WalFrame
from floatscope_server.observation import Observation
from floatscope_server.store.ledger import layer_of

__all__ = ["DEVICES", "HISTOGRAMS", "SCALARS", "SUMMARIES", "replay"]

SUMMARIES = msgspec.msgpack.Decoder(wire.Summaries)
HISTOGRAMS = msgspec.msgpack.Decoder(wire.Histograms)
SCALARS = msgspec.msgpack.Decoder(tuple[wire.Scalars, ...])
DEVICES = msgspec.msgpack.Decoder(tuple[wire.Device, ...])


def replay(session: Session, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
    """Bodies as they were committed, in the order of arrival; device samples are not among them.

    A block is left out if it holds nothing of the last ``last_steps`` steps.
    """
    run = session.get(Run, run_id)
    span = session.get(Attempt, (run_id, attempt))
    if run is None or span is None or span.last_step is None:
        return
    since = span.last_step - last_steps + 1
    layers = {row.idx: layer_of(row) for row in session.exec(select(LayerRow).where(LayerRow.run_id == run_id))}
    events = _events(session, run_id, attempt, since)
    frames = session.execute(
        select_columns(WalFrame.__table__, col(Stream.name).label("stream"))  # type: ignore[attr-defined]
        .join(Stream, col(Stream.id) == col(WalFrame.stream_id))
        .where(
            col(Stream.run_id) == run_id,
            col(WalFrame.attempt) == attempt,
            col(Stream.name) != "gpu",
            col(WalFrame.first) + col(WalFrame.n) > since,
        )
        .order_by(
            col(WalFrame.received_at), col(WalFrame.writer), col(WalFrame.seq), col(Stream.name), col(WalFrame.part)
        )
    )
    for (writer, rank, seq), group in groupby(frames, key=lambda f: (f.writer, f.rank, f.seq)):
        yield Observation(
            run_id=run_id,
            run=run.name,
            attempt=attempt,
            rank=rank,
            writer=writer,
            seq=seq,
            world=run.world,
            body=_body(list(group), tuple(events[writer, seq])),
            layers=layers,
        )


def _events(session: Session, run_id: int, attempt: int, since: int) -> defaultdict[tuple[str, int], list[wire.Event]]:
    events: defaultdict[tuple[str, int], list[wire.Event]] = defaultdict(list)
    rows = session.exec(
        select(StepEvent)
        .where(StepEvent.run_id == run_id, StepEvent.attempt == attempt, StepEvent.step >= since)
        .order_by(col(StepEvent.id))
    )
    for row in rows:
        events[row.writer, row.seq].append(wire.Event(step=row.step, kind=row.kind, detail=row.detail))
    return events


def _body(frames: list[Any], events: tuple[wire.Event, ...]) -> wire.Body:
    first = min(frame.first for frame in frames)
    last = max(frame.first + frame.n - 1 for frame in frames)
    return wire.Body(
        first_step=first,
        steps=last - first + 1,
        summaries=tuple(SUMMARIES.decode(f.data) for f in frames if f.stream.startswith("layer/")),
        histograms=tuple(HISTOGRAMS.decode(f.data) for f in frames if f.stream.startswith("hist/")),
        scalars=tuple(s for f in frames if f.stream == "scalar" for s in SCALARS.decode(f.data)),
        events=events,
    )
