"""The doctor's verdicts of each host of a run: one rank of it brings them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from floatscope_server.jsontext import plain
from floatscope_server.models import Writer

__all__ = ["MAX_HOSTS", "verdicts_of"]

MAX_HOSTS = 64
"""Hosts of one run whose verdicts are kept, attempts counted apart: some 10 KiB each."""
_MAX_VERDICTS = 256
_MAX_TEXT = 300
_MAX_HOST = 100


def verdicts_of(
    session: Session, run_id: int, attempt: int, config: Mapping[str, Any]
) -> tuple[str | None, list[dict[str, str]] | None]:
    """Host of a hello, and its verdicts where no other writer of this attempt has brought them.

    Beyond ``MAX_HOSTS`` those of the oldest writer of an earlier attempt go; without one, the new ones are not kept.
    """
    host, found = config.get("host"), config.get("doctor")
    if not isinstance(host, str) or not host:
        return None, None
    host = str(plain(host))[:_MAX_HOST]
    if not isinstance(found, list | tuple):
        return host, None
    judged = (Writer.run_id == run_id, col(Writer.doctor).is_not(None))
    if session.exec(select(Writer.number).where(*judged, Writer.attempt == attempt, Writer.host == host)).first():
        return host, None
    if session.exec(select(func.count()).select_from(Writer).where(*judged)).one() >= MAX_HOSTS:
        oldest = session.exec(
            select(Writer.number).where(*judged, Writer.attempt < attempt).order_by(col(Writer.number)).limit(1)
        ).first()
        if oldest is None:
            return host, None
        session.execute(update(Writer).where(col(Writer.number) == oldest).values(doctor=None))
    return host, [_verdict(verdict) for verdict in found[:_MAX_VERDICTS] if isinstance(verdict, Mapping)]


def _verdict(verdict: Mapping[str, Any]) -> dict[str, str]:
    # Whatever an agent has sent.
    texts = {name: verdict.get(name) for name in ("item", "status", "value", "why", "fix")}
    return {name: str(plain(text))[:_MAX_TEXT] if isinstance(text, str) else "" for name, text in texts.items()}
