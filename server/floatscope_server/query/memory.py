"""Questions that are answered without the database, from what the store keeps of a run and what was decoded before."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlmodel import Session

from floatscope_server.store.present import RunNow

__all__ = ["MemorySession", "NotInMemoryError", "now_of"]

_KEY = "floatscope_now"


class NotInMemoryError(Exception):
    """The answer needs the database, or takes longer than an event loop can wait."""


class MemorySession(Session):
    """Stands for a session on a snapshot, which is ``now``: whatever would read the database raises
    ``NotInMemoryError``."""

    def __init__(self, now: RunNow) -> None:
        super().__init__(autoflush=False)
        self.info[_KEY] = now

    def get_bind(self, *_: object, **__: object) -> Engine | Connection:
        """There is none."""
        raise NotInMemoryError


def now_of(session: Session) -> RunNow | None:
    """What ``session`` stands for; None where it reads the database."""
    now = session.info.get(_KEY)
    assert now is None or isinstance(now, RunNow)
    return now
