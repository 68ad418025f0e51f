"""The SQLite file: opening it, holding it alone, copying it.

SQLite 3.7.0 to 3.51.2 can corrupt a database in WAL mode when several connections write or checkpoint. So there is one
writing connection, which alone checkpoints, and every other one is opened ``mode=ro``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool, QueuePool

from floatscope_server.database import Database, NoStoreError, Reader, StoreError, Trouble
from floatscope_server.engines.schema import migrate
from floatscope_server.settings import DEFAULT_PORT

__all__ = ["SQLite", "lock_folder"]

_log = logging.getLogger(__name__)

_WAL_RESET_BUG = ((3, 7, 0), (3, 51, 2))
_READERS = 8
_READER_WAIT_S = 5.0
_ANOTHER = "choose another folder with --data DIR"


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


def _open_writer(path: Path) -> Engine:
    """The engine of the one writing connection; its transactions are BEGIN IMMEDIATE."""
    if _WAL_RESET_BUG[0] <= sqlite3.sqlite_version_info <= _WAL_RESET_BUG[1]:
        _log.info("SQLite %s has the WAL-reset bug; one connection writes and checkpoints", sqlite3.sqlite_version)

    def connect() -> sqlite3.Connection:
        connection = _connect(path, read_only=False)
        # page_size first: after auto_vacuum it would be ignored without a word.
        for pragma in (
            "page_size=8192",
            "secure_delete=FAST",
            # In the middle of a commit it takes: the writer does it before, when nobody waits.
            "wal_autocheckpoint=4000",
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


def _raw(connection: Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


class SQLite(Database):
    """The store in the file at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.title = f"the database {path}"

    @contextmanager
    def writer(self) -> Iterator[Connection]:
        lock = lock_folder(self.path.parent)
        try:
            with self._writer() as connection:
                yield connection
        finally:
            os.close(lock)

    @contextmanager
    def _writer(self) -> Iterator[Connection]:
        try:
            _close_to_others(self.path)
        except OSError as error:
            raise StoreError(f"cannot open {self.title}: {error.strerror}") from error
        engine = _open_writer(self.path)
        try:
            with self.understood():
                connection = engine.connect()
        except StoreError:
            engine.dispose()
            raise
        try:
            with self.understood(), connection.begin():
                migrate(connection, self.title, _ANOTHER)
            yield connection
            connection.rollback()
            self._checkpoint(connection, "TRUNCATE")
        finally:
            connection.close()
            engine.dispose()

    def reader(self) -> Reader:
        self._must_exist()
        engine = create_engine(
            "sqlite://",
            creator=lambda: _connect(self.path, read_only=True),
            poolclass=QueuePool,
            pool_size=_READERS,
            max_overflow=0,
            pool_timeout=_READER_WAIT_S,
            # A session has ended its transaction when it gives its connection back.
            pool_reset_on_return=None,
        )
        event.listen(engine, "begin", _begin_deferred)
        return Reader(engine, str(self.path))

    def _must_exist(self) -> None:
        try:
            found = self.path.is_file()
        except PermissionError as error:
            raise StoreError(
                f"the store at {self.path} belongs to another user; ask its server with --server URL"
            ) from error
        if not found:
            ask = f"ask a running server with --server http://127.0.0.1:{DEFAULT_PORT}"
            raise NoStoreError(self.path, f"; {ask}, or give the folder of one with --data DIR")

    def advice(self, found: Trouble) -> str:
        return {
            Trouble.FULL: "free space on its disk",
            Trouble.READ_ONLY: f"make it writable, or {_ANOTHER}",
            Trouble.DAMAGED: f"it is damaged: restore a backup, or {_ANOTHER}",
        }.get(found, _ANOTHER)

    def place(self, connection: Connection) -> str:
        """A file is the same wherever it is moved; ``backup`` takes the epoch out of the copy."""
        return ""

    def checkpoint(self, connection: Connection) -> None:
        """As far as no reader is in the way."""
        self._checkpoint(connection, "PASSIVE")

    def _checkpoint(self, connection: Connection, mode: str) -> None:
        """What cannot be brought into the file, on a full disk for instance, stays in the WAL, and is as safe there."""
        try:
            _raw(connection).execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.DatabaseError as error:
            _log.warning("the WAL could not be brought into the database: %s", error)

    def shrink(self, connection: Connection, pages: int) -> int:
        raw = _raw(connection)
        # Through execute() it would free one page: it returns no column, so it is stepped once.
        raw.executescript(f"PRAGMA incremental_vacuum({pages})")
        return int(raw.execute("PRAGMA freelist_count").fetchone()[0])

    def backup(self, target: Path) -> Path:
        """One read transaction, so one snapshot. ``target`` may be a folder; a file that is there is not replaced."""
        self._must_exist()
        path = target / self.path.name if target.is_dir() else target
        if path.exists():
            raise StoreError(f"{path} exists: a backup replaces nothing; name another file")
        partial = path.with_name(f"{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(_connect(self.path, read_only=True)) as source, closing(sqlite3.connect(partial)) as copy:
                source.backup(copy)
                # The copied header says WAL; all must be in one file, and the copy has an epoch of its own.
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
                copy.execute("DELETE FROM meta WHERE key = 'epoch'")
                copy.commit()
                (sound,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise StoreError(f"the store at {self.path} is damaged: {sound}; the copy is left at {partial}")
            partial.rename(path)
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except sqlite3.Error as error:
            raise StoreError(f"cannot copy {self.title} to {path}: {error}") from error
        except OSError as error:
            raise StoreError(f"cannot write {partial}: {error.strerror}") from error
        return path
