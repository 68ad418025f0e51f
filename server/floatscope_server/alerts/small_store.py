"""A store in one SQLite file with just what alerts need, for tests and for trying rules out: real transactions and real
files, no agents."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlmodel import Session, SQLModel, select

import floatscope_server.alerts.models  # noqa: F401 - its tables are made
from floatscope import wire
from floatscope_server.models import Run, Writer
from floatscope_server.observation import Observation

__all__ = ["SmallStore"]

_T = TypeVar("_T")
_BODY = msgspec.msgpack.Decoder(wire.Body)
_LAYERS = msgspec.msgpack.Decoder(dict[int, wire.Layer])


class SmallStore:
    """Writes in one transaction at a time; ``commit`` stores a body as the server's store would."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        self._engine: Engine = create_engine(f"sqlite:///{path}")
        event.listen(self._engine, "begin", _begin)
        SQLModel.metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            connection.execute(
                text(
                    "CREATE TABLE IF NOT EXISTS body (run_id INTEGER, attempt INTEGER, writer TEXT, rank INTEGER, "
                    "seq INTEGER, world INTEGER, last INTEGER, data BLOB, layers BLOB)"
                )
            )

    def close(self) -> None:
        """Close the file."""
        self._engine.dispose()

    def write(self, fn: Callable[[Session], _T]) -> _T:
        """Run ``fn`` in a transaction of its own."""
        with self._lock, Session(self._engine, expire_on_commit=False) as session:
            result = fn(session)
            session.commit()
            return result

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one snapshot."""
        with Session(self._engine) as session:
            yield session

    def commit(
        self,
        body: wire.Body,
        *,
        run: str = "run",
        writer: str = "w0",
        rank: int = 0,
        attempt: int = 1,
        world: int = 1,
        layers: Mapping[int, wire.Layer] | None = None,
    ) -> Observation:
        """Store ``body`` as the writer's next block and return what observers would get."""
        table = {} if layers is None else dict(layers)

        def store(session: Session) -> Observation:
            row = session.exec(select(Run).where(Run.name == run)).first()
            now = datetime.now(UTC)
            if row is None:
                row = Run(name=run, state="live", created_at=now, started_at=now, heartbeat_at=now)
            row.attempt = max(row.attempt, attempt)
            session.add(row)
            session.flush()
            assert row.id is not None
            known = session.get(Writer, writer)
            if known is None:
                known = Writer(id=writer, run_id=row.id, attempt=attempt, rank=rank, agent="test", last_seen_at=now)
            known.last_seq += 1
            known.last_step = max(known.last_step, body.first_step + max(body.steps, 1) - 1)
            session.add(known)
            session.flush()
            session.execute(
                text("INSERT INTO body VALUES (:run, :attempt, :writer, :rank, :seq, :world, :last, :data, :layers)"),
                {
                    "run": row.id,
                    "attempt": attempt,
                    "writer": writer,
                    "rank": rank,
                    "seq": known.last_seq,
                    "world": world,
                    "last": known.last_step,
                    "data": wire.encode(body),
                    "layers": msgspec.msgpack.encode(table),
                },
            )
            return Observation(
                run_id=row.id,
                run=run,
                attempt=attempt,
                rank=rank,
                writer=writer,
                seq=known.last_seq,
                world=world,
                body=body,
                layers=table,
            )

        return self.write(store)

    def replay(self, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
        """The observations of the last ``last_steps`` steps of an attempt, in the order of their commits."""
        with self.read() as session:
            name = session.exec(select(Run.name).where(Run.id == run_id)).one()
            rows = session.execute(
                text(
                    "SELECT writer, rank, seq, world, data, layers FROM body "
                    "WHERE run_id = :run AND attempt = :attempt AND last > :steps + "
                    "(SELECT max(last) FROM body WHERE run_id = :run AND attempt = :attempt) ORDER BY rowid"
                ),
                {"run": run_id, "attempt": attempt, "steps": -last_steps},
            ).all()
        for writer, rank, seq, world, data, layers in rows:
            yield Observation(
                run_id=run_id,
                run=name,
                attempt=attempt,
                rank=rank,
                writer=writer,
                seq=seq,
                world=world,
                body=_BODY.decode(data),
                layers=_LAYERS.decode(layers),
            )


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
