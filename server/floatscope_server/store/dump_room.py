"""Keeps the flight recorders' dumps of a run within a number of bytes: the oldest go, those of open alerts last."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, case, exists, func, select, update
from sqlmodel import col

from floatscope_server.alerts.models import Alert
from floatscope_server.models import DumpPart
from floatscope_server.store.ledger import KnownRun

__all__ = ["is_removed", "make_room"]


@dataclass(frozen=True, slots=True, order=True)
class _Held:
    """In the order in which they go."""

    pinned: int
    attempt: int
    step: int
    dump: str
    nbytes: int


def is_removed(connection: Connection, run: KnownRun, dump: str) -> bool:
    """Whether ``dump`` had to go: its pieces stay, all of them without what was in them."""
    size = connection.execute(
        select(func.length(col(DumpPart.data)))
        .where(col(DumpPart.run_id) == run.id, col(DumpPart.dump) == dump)
        .limit(1)
    ).scalar()
    return size == 0


def make_room(connection: Connection, run: KnownRun, dump: str, nbytes: int, max_bytes: int) -> bool:
    """Empty dumps of the run until ``nbytes`` more of ``dump`` fit ``max_bytes``; False where that cannot be.

    ``dump`` itself stays, though its alert may not have fired yet. Nothing is emptied in vain.
    """
    if run.dump_bytes is None:
        sizes = select(func.sum(func.length(col(DumpPart.data)))).where(col(DumpPart.run_id) == run.id)
        run.dump_bytes = int(connection.execute(sizes).scalar() or 0)
    over = run.dump_bytes + nbytes - max_bytes
    if over > 0:
        others = sorted(one for one in _held(connection, run.id) if one.dump != dump)
        if over > sum(one.nbytes for one in others):
            return False
        for one in others:
            if over <= 0:
                break
            empty = update(DumpPart).where(col(DumpPart.run_id) == run.id, col(DumpPart.dump) == one.dump)
            connection.execute(empty.values(data=b""))
            run.dump_bytes -= one.nbytes
            over -= one.nbytes
    run.dump_bytes += nbytes
    return True


def _pinned() -> ColumnElement[bool]:
    # Of an agent's own dump the alert is the one whose beginning is in it.
    own = (
        col(DumpPart.alert_id).is_(None)
        & (col(Alert.kind) == col(DumpPart.kind))
        & col(Alert.since_step).between(col(DumpPart.first_step), col(DumpPart.last_step))
    )
    return exists().where(
        col(Alert.run_id) == col(DumpPart.run_id),
        col(Alert.attempt) == col(DumpPart.attempt),
        col(Alert.state) == "firing",
        (col(Alert.id) == col(DumpPart.alert_id)) | own,
    )


def _held(connection: Connection, run_id: int) -> list[_Held]:
    rows = connection.execute(
        select(
            func.max(case((_pinned(), 1), else_=0)),
            func.max(col(DumpPart.attempt)),
            func.max(col(DumpPart.step)),
            col(DumpPart.dump),
            func.sum(func.length(col(DumpPart.data))),
        )
        .where(col(DumpPart.run_id) == run_id)
        .group_by(col(DumpPart.dump))
    ).all()
    return [_Held(*row) for row in rows if row[-1]]
