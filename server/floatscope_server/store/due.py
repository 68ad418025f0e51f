"""What is due to be sealed: decided from what the ranks have reported, what the rules have judged, and how a run is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, ScalarSelect, func, select
from sqlmodel import Session, col

from floatscope_server.alerts.models import Evaluated
from floatscope_server.models import AGAIN, Attempt, LayerRow, Run, Stream, StreamState, WalFrame, Writer
from floatscope_server.store.lifecycle import ENDED
from floatscope_server.store.tilestore import StreamKey, geometry_of
from floatscope_server.tiles.geometry import COLUMNS, Geometry

__all__ = ["MOST_LATE_TILES", "MOST_TILES", "Due", "due_in", "layers_of", "too_late"]

MOST_TILES = 4
"""Tiles that a rank may hold up the others' by being late; and that may be due in a stream before ingest is slowed."""

MOST_LATE_TILES = 64
"""What comes later than this is refused: it would be patched into ever more of what is settled."""

_AFTER_END = timedelta(seconds=30)
"""A run that has ended is sealed to its end: whoever comes back later comes late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The tile ``idx`` of a stream, with ``late`` frames for what is sealed of it already; ``behind``, how many tiles
    are due; ``over``: nothing more is waited for. ``marks`` are the newest judged seq by ``writer.number``; ``ranks``
    those that have reported anything. ``settled``: the stream has its geometry for good."""

    key: StreamKey
    idx: int
    late: bool
    behind: int
    over: bool
    geometry: Geometry
    settled: bool
    layers: int
    world: int
    marks: dict[int, int]
    ranks: frozenset[int]

    @property
    def several(self) -> bool:
        """Whether there are several ranks."""
        return self.world > 1 or len(self.ranks) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A writer, the highest step it sent, where it is now, and how far the rules are with it."""

    number: int
    rank: int
    live: bool
    last_step: int
    at: int
    seen_at: datetime
    mark: int
    held: bool


def due_in(
    session: Session,
    run_id: int,
    *,
    now: datetime,
    slack: int,
    lost_after_s: float,
    reached: Mapping[str, int] | None = None,
) -> tuple[list[Due], bool]:
    """The next tile of each stream and attempt of a run, of those of which one is due, and the first one that something
    came late for.

    A tile is due when all live ranks are past its end by more than ``slack`` steps, or when its attempt has ended. A
    rank that is late by more than ``MOST_TILES`` tiles is not waited for. ``reached`` is where writers (``writer.id``)
    are now, as far as that is known: a step far ahead does not mean that those before it are done. Beside it: whether
    anything is left that may become due.
    """
    run = session.get(Run, run_id)
    if run is None:
        return [], False
    opened = _open(session, run_id)
    if not opened:
        return [], run.state not in ENDED
    layers = layers_of(session, run_id)
    attempts = {row.n: row for row in session.execute(select(Attempt).where(col(Attempt.run_id) == run_id)).scalars()}
    sent = _sent(session, run_id, now - timedelta(seconds=lost_after_s), reached or {})
    limits = {n: _limit(run, attempt, sent.get(n, []), now, slack) for n, attempt in attempts.items()}
    found: list[Due] = []
    for state, stream, oldest in opened:
        geometry = geometry_of(stream) or Geometry.for_layers(layers)
        key = StreamKey(
            run_id=run_id,
            stream_id=state.stream_id,
            attempt=state.attempt,
            sealed=state.sealed,
            epoch=state.epoch,
        )
        of_attempt = sent.get(state.attempt, [])
        limit = limits[state.attempt]
        for kind, first in oldest.items():
            idx, late = first // geometry.columns, kind != "ahead"
            if kind == "again" and limit is not None and not too_late(geometry, idx, state.sealed):
                continue
            behind = 0 if limit is None else (limit - idx * geometry.columns) // geometry.columns
            if limit is not None and not late and behind > MOST_TILES:
                # Steps may be far apart.
                behind = max(1, min(behind, _frames_before(session, key, limit)))
            if late or limit is None or behind > 0:
                found.append(
                    Due(
                        key=key,
                        idx=idx,
                        late=late,
                        behind=0 if late else behind,
                        over=limit is None,
                        geometry=geometry,
                        settled=stream.columns is not None,
                        layers=layers,
                        world=attempts[state.attempt].world,
                        marks={writer.number: writer.mark for writer in of_attempt},
                        ranks=frozenset(writer.rank for writer in of_attempt if writer.last_step >= 0),
                    )
                )
    return found, True


def too_late(geometry: Geometry, idx: int, sealed: int) -> bool:
    """Whether tile ``idx`` is too far behind ``sealed`` to be changed."""
    return (idx + 1) * geometry.columns <= sealed - MOST_LATE_TILES * geometry.columns


def _open(session: Session, run_id: int) -> list[tuple[StreamState, Stream, dict[str, int]]]:
    """The streams and attempts of a run that have an open tail, with the first column of what came "late", of what
    waits for its ranks to send it "again", and of what lies "ahead" of the watermark, as far as there are such: one
    statement, however many attempts there were."""
    waits = col(WalFrame.flags).bitwise_and(AGAIN) != 0
    behind = col(WalFrame.first) < col(StreamState.sealed)
    rows = session.execute(
        select(
            StreamState,
            Stream,
            _oldest(behind & ~waits),
            _oldest(behind & waits),
            _oldest(~behind),
        )
        .join(Stream, col(Stream.id) == col(StreamState.stream_id))
        .where(col(Stream.run_id) == run_id, col(Stream.name).like("layer/%"))
    )
    found: list[tuple[StreamState, Stream, dict[str, int]]] = []
    for state, stream, *firsts in rows.all():
        oldest = {
            kind: first for kind, first in zip(("late", "again", "ahead"), firsts, strict=True) if first is not None
        }
        if oldest:
            found.append((state, stream, oldest))
    return found


def _sent(session: Session, run_id: int, lost_before: datetime, reached: Mapping[str, int]) -> dict[int, list[_Sent]]:
    """By attempt."""
    rows = session.execute(
        select(Writer, col(Evaluated.seq), col(Evaluated.held))
        .join(Evaluated, col(Evaluated.writer) == col(Writer.id), isouter=True)
        .where(col(Writer.run_id) == run_id)
    )
    sent: dict[int, list[_Sent]] = {}
    for writer, seq, held in rows.all():
        live = writer.bye is None and writer.last_seen_at >= lost_before
        entry = _Sent(
            number=writer.number,
            rank=writer.rank,
            live=live,
            last_step=writer.last_step,
            at=reached.get(writer.id, writer.last_step),
            seen_at=writer.last_seen_at,
            mark=seq or 0,
            held=bool(held),
        )
        sent.setdefault(writer.attempt, []).append(entry)
    return sent


def _limit(run: Run, attempt: Attempt, sent: list[_Sent], now: datetime, slack: int) -> int | None:
    """Steps before this one may be sealed; None for all."""
    over = run.state in ENDED if attempt.n == run.attempt else attempt.n < run.attempt
    if over and all(writer.seen_at <= now - _AFTER_END for writer in sent):
        return 0 if any(writer.held for writer in sent) else None
    if attempt.last_step is None:
        return 0
    reached: dict[int, int] = {}
    for writer in sent:
        if writer.live:
            reached[writer.rank] = max(reached.get(writer.rank, -1), writer.at)
    if not reached:
        return attempt.last_step + 1 - slack
    return max(min(reached.values()), max(reached.values()) - MOST_TILES * COLUMNS) + 1 - slack


def layers_of(session: Session, run_id: int) -> int:
    """How many layers the run has; their numbers begin at 0."""
    number: int = session.execute(select(func.count()).where(col(LayerRow.run_id) == run_id)).scalar_one()
    return number


def _frames_before(session: Session, key: StreamKey, limit: int) -> int:
    number: int = session.execute(
        select(func.count()).where(
            col(WalFrame.stream_id) == key.stream_id,
            col(WalFrame.attempt) == key.attempt,
            col(WalFrame.first) >= key.sealed,
            col(WalFrame.first) < limit,
        )
    ).scalar_one()
    return number


def _oldest(where: ColumnElement[bool]) -> ScalarSelect[int]:
    """The first open column of those that ``where`` picks."""
    return (
        select(func.min(WalFrame.first))
        .where(
            col(WalFrame.stream_id) == col(StreamState.stream_id),
            col(WalFrame.attempt) == col(StreamState.attempt),
            where,
        )
        .correlate(StreamState)
        .scalar_subquery()
    )
