"""The SQLite file: opening it, holding it alone, bringing its schema up to date.

SQLite 3.7.0 to 3.51.2 can corrupt a database in WAL mode when several connections write or checkpoint. So there is one
writing connection, which alone checkpoints, and every other one is opened ``mode=ro``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool, QueuePool
from sqlmodel import Session, SQLModel

from floatscope_server.settings import DEFAULT_PORT

__all__ = [
    "Reader",
    "StoreError",
    "checkpoint",
    "head_revision",
    "lock_folder",
    "migration_config",
    "open_writer",
    "understood",
    "utc",
    "writer",
]

_log = logging.getLogger(__name__)

_WAL_RESET_BUG = ((3, 7, 0), (3, 51, 2))
_READERS = 8
_READER_WAIT_S = 5.0


class StoreError(Exception):
    """The store cannot be used; the text says what to do."""


def utc(seconds: float) -> datetime:
    """Wall-clock ``seconds`` since 1970 as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def lock_folder(folder: Path) -> int:
    """Make ``folder``, for its owner alone, and hold it for this process; returns the open lock, to be closed at the
    end."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "floatscope.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot write in the data folder {folder}: {error.strerror}; choose another with --data DIR"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"another floatscope server is using the data folder {folder}; stop it, or choose another with --data DIR"
        ) from None
    return lock


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    quoted = str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # isolation_level None: the driver must not start transactions by itself, the "begin" event below does.
    return sqlite3.connect(f"file:{quoted}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False)


def _close_to_others(path: Path) -> None:
    """Make the file, or what a former version left, readable by its owner alone: webhook secrets are in it. SQLite
    gives the files beside it the mode of the database."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)


def open_writer(path: Path) -> Engine:
    """The engine of the one writing connection; its transactions are BEGIN IMMEDIATE."""
    if _WAL_RESET_BUG[0] <= sqlite3.sqlite_version_info <= _WAL_RESET_BUG[1]:
        _log.info("SQLite %s has the WAL-reset bug; one connection writes and checkpoints", sqlite3.sqlite_version)

    def connect() -> sqlite3.Connection:
        connection = _connect(path, read_only=False)
        # page_size first: after auto_vacuum it would be ignored without a word.
        for pragma in (
            "page_size=8192",
            "auto_vacuum=INCREMENTAL",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "journal_size_limit=67108864",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_deferred(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """What SQLite says against the database at ``path`` as a ``StoreError`` that says what to do."""
    try:
        yield
    except DatabaseError as error:
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        hint = {
            sqlite3.SQLITE_FULL: "free space on its disk",
            sqlite3.SQLITE_READONLY: "make it writable, or choose another folder with --data DIR",
            sqlite3.SQLITE_CORRUPT: "it is damaged: restore a backup, or choose another folder with --data DIR",
        }.get(code, "choose another folder with --data DIR")
        raise StoreError(f"cannot use the database {path}: {error.orig}; {hint}") from error


@contextmanager
def writer(path: Path) -> Iterator[Connection]:
    """The writing connection with the schema at its newest; ``StoreError`` when the file cannot be used."""
    try:
        _close_to_others(path)
    except OSError as error:
        raise StoreError(f"cannot open the database {path}: {error.strerror}") from error
    engine = open_writer(path)
    try:
        connection = engine.connect()
    except DatabaseError as error:
        engine.dispose()
        raise StoreError(f"cannot open the database {path}: {error.orig}") from error
    try:
        with understood(path):
            _migrate(connection, path)
        yield connection
        connection.rollback()
        checkpoint(connection, truncate=True)
    finally:
        connection.close()
        engine.dispose()


def checkpoint(connection: Connection, *, truncate: bool = False) -> None:
    """Bring what the WAL holds into the database file, as far as no reader is in the way; outside of a transaction."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchall()


def migration_config() -> Config:
    """Alembic's configuration; the scripts lie in this package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def head_revision() -> str:
    """The newest schema this version knows."""
    head = ScriptDirectory.from_config(migration_config()).get_current_head()
    assert head is not None
    return head


def _migrate(connection: Connection, path: Path) -> None:
    config = migration_config()
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    with connection.begin():
        current = MigrationContext.configure(connection).get_current_revision()
        if current is not None and current not in known:
            raise StoreError(
                f"the database {path} was written by a newer floatscope (schema {current}; this version knows up to "
                f"{scripts.get_current_head()}): upgrade floatscope, or choose another folder with --data DIR"
            )
        if current is None and (foreign := sorted(inspect(connection).get_table_names())):
            raise StoreError(
                f"the database {path} is another program's (it has a table {foreign[0]!r}): choose another folder with "
                "--data DIR"
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        if missing := sorted(SQLModel.metadata.tables.keys() - set(inspect(connection).get_table_names())):
            raise StoreError(
                f"the database {path} lacks the table {missing[0]!r}: restore a backup, or choose another folder with "
                "--data DIR"
            )


class Reader:
    """Read-only access to the store, beside a running server or without one."""

    def __init__(self, path: Path) -> None:
        try:
            found = path.is_file()
        except PermissionError as error:
            raise StoreError(
                f"the store at {path} belongs to another user; ask its server with --server URL"
            ) from error
        if not found:
            raise StoreError(
                f"there is no floatscope store at {path}; ask a running server with "
                f"--server http://127.0.0.1:{DEFAULT_PORT}, or give the folder of one with --data DIR"
            )
        self._engine = create_engine(
            "sqlite://",
            creator=lambda: _connect(path, read_only=True),
            poolclass=QueuePool,
            pool_size=_READERS,
            max_overflow=0,
            pool_timeout=_READER_WAIT_S,
        )
        event.listen(self._engine, "begin", _begin_deferred)

    def check(self, path: Path) -> None:
        """``StoreError`` when the schema is not this version's."""
        try:
            with self._engine.connect() as connection:
                current = MigrationContext.configure(connection).get_current_revision()
        except DatabaseError as error:
            raise StoreError(f"cannot read the store at {path}: {error.orig}") from error
        if current != head_revision():
            raise StoreError(
                f"the store at {path} has schema {current}, this version reads {head_revision()}: start "
                "`floatscope server` of the same version on it"
            )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session on one snapshot of the store; it cannot write."""
        with Session(self._engine, autoflush=False) as session:
            yield session

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()
