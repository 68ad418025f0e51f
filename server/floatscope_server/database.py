"""The one way to the store's database, whichever engine holds it.

``Database`` is what the rest of the server knows of an engine; ``engines.sqlite`` and ``engines.postgres`` are the two
there are. Statements are SQLAlchemy's and the same for both; ``upsert`` and ``trouble`` hide what differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, Insert, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlmodel import Session, SQLModel

from floatscope_server.engines.codes import Trouble, of_sqlite, of_sqlstate
from floatscope_server.engines.schema import NoStoreError, StoreError, head_revision

if TYPE_CHECKING:
    from floatscope_server.settings import Settings

__all__ = [
    "Database",
    "NoStoreError",
    "Reader",
    "StoreError",
    "Trouble",
    "append",
    "database_of",
    "reason",
    "trouble",
    "upsert",
    "utc",
]


def utc(seconds: float) -> datetime:
    """Wall-clock ``seconds`` since 1970 as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def upsert(connection: Connection, table: type[SQLModel]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT into ``table`` that has ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def append(connection: Connection, table: type[SQLModel], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert ``rows``, all with the same keys, of numbers, text and bytes, by the engine's fastest way."""
    if connection.dialect.name == "postgresql":
        from floatscope_server.engines.copying import copy_rows

        copy_rows(connection, table, rows)
    elif rows:
        connection.execute(_insert(table), rows)


@cache
def _insert(table: type[SQLModel]) -> Insert:
    """Made once, of the table and not of the model: that takes as long as to run it."""
    return insert(SQLModel.metadata.tables[str(table.__tablename__)])


def trouble(error: BaseException) -> Trouble | None:
    """What is wrong with the database, or None: then the statement is at fault and fails again wherever it runs."""
    if not isinstance(error, DBAPIError):
        return None
    if error.connection_invalidated:
        return Trouble.LOST
    orig: Any = error.orig
    operational = isinstance(error, OperationalError)
    if hasattr(orig, "sqlstate"):
        return of_sqlstate(orig.sqlstate, operational=operational)
    return of_sqlite(getattr(orig, "sqlite_errorcode", None), operational=operational)


def reason(error: BaseException) -> str:
    """What the engine says, in one line."""
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())


class Reader:
    """Read-only access to the store, beside a running server or without one."""

    def __init__(self, engine: Engine, title: str) -> None:
        self._engine = engine
        self._title = title

    def check(self) -> None:
        """``StoreError`` when the schema is not this version's."""
        try:
            with self._engine.connect() as connection:
                current = MigrationContext.configure(connection).get_current_revision()
        except DBAPIError as error:
            raise StoreError(f"cannot read the store at {self._title}: {reason(error)}") from error
        if current is None:
            raise NoStoreError(self._title, ": start `floatscope server` on it")
        if current != head_revision():
            raise StoreError(
                f"the store at {self._title} has schema {current}, this version reads {head_revision()}: start "
                "`floatscope server` of the same version on it"
            )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session on one snapshot of the store; it cannot write."""
        session = Session(self._engine, autoflush=False)
        try:
            yield session
        finally:
            try:
                session.close()
            except DBAPIError:
                # The engine went away meanwhile. What was read stands, and there is nothing to take back.
                session.invalidate()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


class Database(ABC):
    """A store's database. Making one has no effect; ``title`` names it in messages and holds no password."""

    title: str

    @abstractmethod
    def writer(self) -> AbstractContextManager[Connection]:
        """The one writing connection, held for this process alone, the schema at its newest.

        It may reconnect by itself between two transactions. ``StoreError`` when the database cannot be used, belongs
        to another program or a newer floatscope, or another server holds it; also from a later transaction, when
        another server has held it meanwhile.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """For sessions on one snapshot each; ``StoreError`` when there is no store."""

    @abstractmethod
    def advice(self, found: Trouble) -> str:
        """What an operator can do."""

    @abstractmethod
    def place(self, connection: Connection) -> str:
        """Where the data lies. It is another one after a restore or a failover, if the engine can tell."""

    @abstractmethod
    def checkpoint(self, connection: Connection) -> None:
        """Bring the log of what was written into the database, outside of a transaction; a failure is logged."""

    @abstractmethod
    def shrink(self, connection: Connection, pages: int) -> int:
        """Give up to ``pages`` free pages back to the file system, outside of a transaction; how many are left."""

    @abstractmethod
    def backup(self, target: Path) -> Path:
        """Copy the store, beside a running server or without one; returns where it is.

        A server that is started on the copy has a new epoch. ``StoreError`` if it cannot be done.
        """

    @contextmanager
    def understood(self) -> Iterator[None]:
        """What the engine says against the database as a ``StoreError`` that says what to do."""
        try:
            yield
        except DBAPIError as error:
            advice = self.advice(trouble(error) or Trouble.OTHER)
            raise StoreError(f"cannot use {self.title}: {reason(error)}; {advice}") from error


def database_of(settings: Settings) -> Database:
    """The database that ``settings`` name; ``StoreError`` if what it needs is not installed."""
    if not settings.postgres:
        from floatscope_server.engines.sqlite import SQLite

        return SQLite(settings.database)
    assert settings.db is not None
    try:
        from floatscope_server.engines.postgres import Postgres
    except ModuleNotFoundError as error:
        raise StoreError(f'{error.name} is missing; type: pip install "floatscope[server,postgres]"') from error
    return Postgres(settings.db)
