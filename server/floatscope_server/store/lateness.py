"""What is said and written of frames that came late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import insert, literal, select, update
from sqlmodel import Session, SQLModel, col

from floatscope_server.models import AGAIN, Gap, RankEvent, StreamState, WalFrame
from floatscope_server.store.due import MOST_LATE_TILES, Due, too_late
from floatscope_server.store.summary_tail import FrameKey
from floatscope_server.store.tilestore import has_raw
from floatscope_server.tiles.departures import MOST, Departure
from floatscope_server.tiles.statistics import Stat

__all__ = ["gap_of", "late_ranks", "let_wait", "refusal", "store_events"]


def refusal(session: Session, due: Due) -> str | None:
    """Why what came late cannot be brought into its tile, or None."""
    if too_late(due.geometry, due.idx, due.key.sealed):
        return f"more than {MOST_LATE_TILES * due.geometry.columns} steps late"
    end = (due.idx + 1) * due.geometry.columns
    state = session.get(StreamState, (due.key.stream_id, due.key.attempt))
    if state is not None and end <= state.raw_from and not has_raw(session, due.key, due.idx):
        # What is pooled of several steps cannot be mended with one of them.
        return "late for steps that are not kept one by one any more"
    return None


def gap_of(due: Due, frames: Sequence[FrameKey], reason: str) -> Gap:
    """What says that ``frames``, all of one rank, were left out."""
    return Gap(
        run_id=due.key.run_id,
        rank=frames[0].rank,
        first=min(frame.first for frame in frames),
        last=max(frame.first + frame.n - 1 for frame in frames),
        count=len(frames),
        reason=reason,
    )


def let_wait(session: Session, frames: Iterable[FrameKey], end: int) -> None:
    """Have what ``frames`` hold before ``end`` wait for other ranks; the rest is not changed."""
    connection = session.connection()
    table = SQLModel.metadata.tables[str(WalFrame.__tablename__)].c
    for frame in frames:
        flags = frame.flags | AGAIN
        if frame.first + frame.n <= end:
            connection.execute(update(WalFrame).where(col(WalFrame.id) == frame.id).values(flags=flags))
            continue
        given = {"n": literal(end - frame.first), "flags": literal(flags)}
        names = [column.name for column in table if column.name != "id"]
        part = select(*(given.get(name, table[name]) for name in names)).where(table["id"] == frame.id)
        connection.execute(insert(WalFrame).from_select(names, part))


def late_ranks(keys: Iterable[FrameKey]) -> list[Departure]:
    """One of each rank: its first late step, and how many."""
    first: dict[int, int] = {}
    steps: dict[int, int] = {}
    for frame in keys:
        first[frame.rank] = min(first.get(frame.rank, frame.first), frame.first)
        steps[frame.rank] = steps.get(frame.rank, 0) + frame.n
    return [Departure(first[rank], rank, -1, int(Stat.STEPS), float(steps[rank]), None, "late") for rank in first][
        :MOST
    ]


def store_events(session: Session, due: Due, events: Sequence[Departure]) -> None:
    """Write them."""
    rows: list[dict[str, Any]] = [
        {
            "run_id": due.key.run_id,
            "attempt": due.key.attempt,
            "stream_id": due.key.stream_id,
            **event._asdict(),
        }
        for event in events
    ]
    if rows:
        session.connection().execute(insert(RankEvent), rows)
