"""Numbers of runs and streams that nothing had before, while this process lives."""

from __future__ import annotations

from sqlmodel import Session, SQLModel, func, select

from floatscope_server.models import Run, Stream

__all__ = ["Numbers"]


class Numbers:
    """SQLite gives the highest number again once its row is deleted, and what is kept in memory goes by numbers: a new
    run would be answered with what a deleted one had. PostgreSQL's sequences never do."""

    def __init__(self) -> None:
        self._last: dict[type[SQLModel], int] = {}

    def start(self, session: Session) -> None:
        """Take note of those that are there, before anybody can ask for them."""
        for model in (Run, Stream):
            self._last[model] = session.exec(select(func.max(model.id))).one() or 0

    def next(self, session: Session, model: type[Run | Stream]) -> int | None:
        """The number for a new row; None where the database gives it."""
        if session.get_bind().dialect.name == "postgresql":
            return None
        if model not in self._last:
            self.start(session)
        self._last[model] += 1
        return self._last[model]
