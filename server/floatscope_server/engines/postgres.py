"""PostgreSQL: one writing session that holds the store by an advisory lock, and a pool of read-only ones.

The lock is of the very session that writes. Where the session ends so does the lock, and what would reconnect must take
it again, so that no two servers ever write. A server that finds another's mark after reconnecting gives up: what it
knows of the store is old.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import StrDumperUnknown
from sqlalchemy import Connection, Engine, LargeBinary, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool
from sqlmodel import SQLModel

from floatscope_server.database import Database, Reader, StoreError, Trouble, upsert
from floatscope_server.engines.schema import migrate
from floatscope_server.models import Meta

__all__ = ["Postgres"]

_log = logging.getLogger(__name__)

_READERS = 8
_READER_WAIT_S = 5.0
_CONNECT_S = 5
_BACK_OFF_S = (0.25, 5.0)
_PATIENCE_S = 3.0
"""For the session of a server that was killed a moment ago to be noticed."""

_ANOTHER = "give the URL of another database with --db"
_LOCK_CLASS = 0x464C4F41  # "FLOA"
# A schema of its own is a store of its own.
_TAKE = "SELECT pg_try_advisory_lock(%s, hashtext(coalesce(current_schema(), '')))"
_OWNER = "SELECT value FROM meta WHERE key = 'owner'"

# A peer that is gone without a word is noticed after 25 s, on both sides: its lock would hold up the next server.
_CLIENT_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}
_SESSION = """
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('timezone', 'UTC', false),
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false) END
"""

# Rows live for one tile width: without this nothing is vacuumed before it is as large as what is kept.
_STORAGE = {
    "wal_frame": {
        "fillfactor": "100",
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_vacuum_threshold": "2000",
        "toast.autovacuum_vacuum_scale_factor": "0",
        "toast.autovacuum_vacuum_threshold": "20000",
    }
}


class _Held(psycopg.OperationalError):
    """Another session holds the store."""


class _Cursor(psycopg.Cursor[Any]):
    """Asks for results in binary: as text a blob is twice as long, and 256 tiles took 58 ms instead of 14."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - the driver's
        super().__init__(*args, **options)
        self.format = psycopg.pq.Format.BINARY


class _ServerCursor(psycopg.ServerCursor[Any]):
    """The same, for what is read piece by piece."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - the driver's
        super().__init__(*args, **options)
        self.format = psycopg.pq.Format.BINARY


class _Text(StrDumperUnknown):
    """PostgreSQL has no U+0000 in a text. Where a name must stay what it is, it has been refused before."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd"))


def _in_binary(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    connection.cursor_factory = _Cursor
    connection.server_cursor_factory = _ServerCursor
    return connection


class Postgres(Database):
    """The store in the database that ``url`` names: ``postgresql://USER@HOST:PORT/DATABASE`` and what libpq adds.

    ``StoreError`` if it is malformed.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error:
            # What libpq says repeats the URL, and with it a password.
            raise StoreError(
                "the database URL is malformed; write postgresql://USER@HOST:PORT/DATABASE, with what is special in a "
                "password percent-encoded"
            ) from None
        self._url = url
        host = parts.get("host") or os.environ.get("PGHOST") or "this machine"
        port = f":{parts['port']}" if parts.get("port") else ""
        name = parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user") or "of this user"
        self.title = f"the database {name} on {host}{port}"
        self._owner = uuid.uuid4().hex
        self._ours = False
        """Whether the schema is up to date and the mark in it is this server's."""
        self._failure: psycopg.OperationalError | None = None
        self._wait_s = 0.0
        self._not_before = 0.0

    def _connect(self, role: str) -> psycopg.Connection[Any]:
        given: dict[str, Any] = {"connect_timeout": _CONNECT_S, **_CLIENT_KEEPALIVE}
        known = conninfo_to_dict(self._url)
        given = {name: value for name, value in given.items() if name not in known}
        connection = psycopg.connect(self._url, **given, fallback_application_name=f"floatscope {role}")
        connection.adapters.register_dumper(str, _Text)
        return connection

    # Writing.

    @contextmanager
    def writer(self) -> Iterator[Connection]:
        self._ours = False
        self._owner = uuid.uuid4().hex
        self._failure, self._wait_s, self._not_before = None, 0.0, 0.0
        # The hstore type is not used; looking for it would be a query at every connect.
        engine = create_engine(
            "postgresql+psycopg://", creator=self._connect_writer, poolclass=NullPool, use_native_hstore=False
        )
        try:
            with self.understood():
                connection = self._first(engine)
            try:
                with self.understood(), connection.begin():
                    self._prepare(connection)
                raw = connection.connection.driver_connection
                assert isinstance(raw, psycopg.Connection)
                # Not before: SQLAlchemy reads the schema as text.
                _in_binary(raw)
                self._ours = True
                yield connection
            finally:
                connection.close()
        finally:
            engine.dispose()

    def _prepare(self, connection: Connection) -> None:
        self._fit(connection)
        migrate(connection, self.title, _ANOTHER)
        _tune(connection)
        statement = upsert(connection, Meta).values(key="owner", value=self._owner)
        connection.execute(
            statement.on_conflict_do_update(index_elements=["key"], set_={"value": statement.excluded.value})
        )

    def _first(self, engine: Engine) -> Connection:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return engine.connect()
            except DBAPIError as error:
                if not isinstance(error.orig, _Held):
                    raise
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"another floatscope server is using {self.title}; stop it, or {_ANOTHER}"
                    ) from None
                time.sleep(0.1)

    def _connect_writer(self) -> psycopg.Connection[Any]:
        """A session that holds the store. After a failure it is not tried again before a pause, which grows."""
        if self._failure is not None and time.monotonic() < self._not_before:
            raise self._failure
        try:
            connection = self._connect("writer")
            try:
                self._take(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.OperationalError as error:
            if self._ours:
                self._wait_s = min(max(2 * self._wait_s, _BACK_OFF_S[0]), _BACK_OFF_S[1])
                self._not_before = time.monotonic() + self._wait_s
                self._failure = error
            raise
        self._failure, self._wait_s = None, 0.0
        return _in_binary(connection) if self._ours else connection

    def _take(self, connection: psycopg.Connection[Any]) -> None:
        connection.autocommit = True
        connection.execute(_SESSION)
        row = connection.execute(_TAKE, (_LOCK_CLASS,)).fetchone()
        if row is None or not row[0]:
            raise _Held("another session holds the store")
        if self._ours:
            owner = connection.execute(_OWNER).fetchone()
            if owner is None or owner[0] != self._owner:
                raise StoreError(
                    f"another floatscope server has used {self.title} since the connection was lost: start this one "
                    "again"
                )
        connection.autocommit = False

    def _fit(self, connection: Connection) -> None:
        encoding, standby, fsync, schema = connection.execute(
            text(
                "SELECT current_setting('server_encoding'), pg_is_in_recovery(), current_setting('fsync'), "
                "current_schema()"
            )
        ).one()
        if schema is None:
            raise StoreError(f"{self.title} has no schema of its search_path: create one, or {_ANOTHER}")
        if encoding != "UTF8":
            raise StoreError(
                f"{self.title} is encoded in {encoding}: names of layers and runs need ENCODING 'UTF8'; {_ANOTHER}"
            )
        if standby:
            raise StoreError(f"{self.title} is a standby, which cannot be written: give the URL of its primary")
        if fsync == "off":
            _log.warning("%s runs with fsync=off: a power cut may lose what was acknowledged", self.title)

    # Reading.

    def reader(self) -> Reader:
        def connect() -> psycopg.Connection[Any]:
            connection = self._connect("reader")
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET timezone = 'UTC'")
            connection.commit()
            return _in_binary(connection)

        engine = create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=QueuePool,
            pool_size=_READERS,
            max_overflow=0,
            pool_timeout=_READER_WAIT_S,
            # After a restart of PostgreSQL the pool holds dead connections.
            pool_pre_ping=True,
            use_native_hstore=False,
        )
        return Reader(engine, self.title.removeprefix("the "))

    # The rest.

    def advice(self, found: Trouble) -> str:
        return {
            Trouble.FULL: "free space on its disk",
            Trouble.CONNECTIONS: "it allows too few connections: raise max_connections, a server takes nine",
            Trouble.READ_ONLY: "give this user the right to create tables in it, or name a database of its own",
            Trouble.DAMAGED: f"it is damaged: restore a backup, or {_ANOTHER}",
            Trouble.LOST: "see that PostgreSQL runs there and lets this user in",
        }.get(found, _ANOTHER)

    def place(self, connection: Connection) -> str:
        """Cluster, database and timeline: a dump that is restored makes a new database, a standby that takes over or
        a recovery to a point in time a new timeline."""
        row = connection.execute(
            text(
                "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), "
                "left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()"
            )
        ).one()
        return "/".join(str(part) for part in row)

    def checkpoint(self, connection: Connection) -> None:
        """PostgreSQL has a process of its own for it."""

    def shrink(self, connection: Connection, pages: int) -> int:
        """Autovacuum gives free pages to new rows."""
        return 0

    def backup(self, target: Path) -> Path:
        """By ``pg_dump`` in its custom format."""
        program = shutil.which("pg_dump")
        name = "floatscope.dump"
        path = target / name if target.is_dir() else target
        if program is None:
            raise StoreError(
                f"pg_dump is missing; install PostgreSQL's client programs, or type where they are: pg_dump "
                f"--format=custom --file={path} URL"
            )
        if path.exists():
            raise StoreError(f"{path} exists: a backup replaces nothing; name another file")
        partial = path.with_name(f"{path.name}.partial")
        # What a process was started with others can read; its environment they cannot.
        environment = {**os.environ, **_environment(self._url)}
        mask = os.umask(0o077)
        try:
            done = subprocess.run(
                [program, "--format=custom", "--no-owner", "--no-password", f"--file={partial}"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            os.umask(mask)
        if done.returncode:
            partial.unlink(missing_ok=True)
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise StoreError(f"pg_dump cannot copy {self.title}: {lines[0].removeprefix('pg_dump: ')}")
        descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.rename(path)
        return path


def _environment(url: str) -> dict[str, str]:
    """The variables by which libpq's programs find the database."""
    names = {
        option.keyword.decode(): option.envvar.decode()
        for option in psycopg.pq.Conninfo.get_defaults()
        if option.envvar is not None
    }
    return {names[name]: str(value) for name, value in conninfo_to_dict(url).items() if name in names}


def _tune(connection: Connection) -> None:
    """Storage of tables, as far as it is not what it should be: an ALTER TABLE waits for every reader.

    Blobs are compressed or packed already: EXTERNAL, so that PostgreSQL does not try once more.
    """
    other = {
        (table, column)
        for table, column in connection.execute(
            text(
                "SELECT relname, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
                "WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 "
                "AND atttypid = 'bytea'::regtype AND attstorage <> 'e'"
            )
        )
    }
    for table in SQLModel.metadata.tables.values():
        for column in table.columns:
            if isinstance(column.type, LargeBinary) and (table.name, column.name) in other:
                connection.execute(
                    text(f'ALTER TABLE "{table.name}" ALTER COLUMN "{column.name}" SET STORAGE EXTERNAL')
                )
    for name, options in _STORAGE.items():
        found = connection.execute(
            text(
                "SELECT coalesce(c.reloptions, '{}') || coalesce("
                "(SELECT array_agg('toast.' || o) FROM unnest(t.reloptions) o), '{}') "
                "FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid "
                "WHERE c.relname = :name AND c.relnamespace = current_schema()::regnamespace"
            ),
            {"name": name},
        ).scalar_one()
        wanted = [f"{option}={value}" for option, value in options.items()]
        if not set(wanted) <= set(found):
            connection.execute(text(f'ALTER TABLE "{name}" SET ({", ".join(wanted)})'))
