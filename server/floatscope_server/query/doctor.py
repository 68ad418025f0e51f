"""What the doctor said on each host of a run, and in what the hosts differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlmodel import Session, col, select

from floatscope_server.models import Run, Writer

__all__ = ["differing", "doctor"]


def doctor(session: Session, run: Run) -> dict[str, object]:
    """``hosts``: verdicts by host and attempt, oldest attempt first. ``differ``: the items on which hosts of the
    current attempt disagree."""
    rows = session.exec(
        select(Writer.attempt, Writer.host, Writer.rank, Writer.doctor)
        .where(Writer.run_id == run.id, col(Writer.doctor).is_not(None))
        .order_by(col(Writer.attempt), col(Writer.rank), col(Writer.number))
    ).all()
    hosts: list[dict[str, Any]] = [
        {"attempt": attempt, "host": host, "rank": rank, "verdicts": verdicts} for attempt, host, rank, verdicts in rows
    ]
    return {"hosts": hosts, "differ": differing([one for one in hosts if one["attempt"] == run.attempt])}


def differing(hosts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items whose status or value is not the same on all ``hosts``; null where the doctor has not named it."""
    said = {
        one["host"]: {v["item"]: {"status": v["status"], "value": v["value"]} for v in one["verdicts"]} for one in hosts
    }
    items = dict.fromkeys(item for verdicts in said.values() for item in verdicts)
    found = []
    for item in items:
        by_host = {host: verdicts.get(item) for host, verdicts in said.items()}
        if any(one != next(iter(by_host.values())) for one in by_host.values()):
            found.append({"item": item, "hosts": by_host})
    return found
