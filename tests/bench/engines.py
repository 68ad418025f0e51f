"""What a commit costs on each engine, without a network and without rules: frames appended, the writer's row moved.

A sample is one float32 of one layer at one step: 300 layers, two kinds, eight statistics, one frame per kind and
commit. The engines take turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, update
from sqlmodel import Session, col

import floatscope_server.access
import floatscope_server.alerts.models  # noqa: F401 - its tables belong to the schema
from floatscope_server.database import append, database_of
from floatscope_server.models import Run, Stream, WalFrame, Writer
from floatscope_server.settings import Settings
from tests.bench.spread import spread
from tests.postgres import Cluster, programs

_STEP_BYTES = 300 * 8 * 4
_KINDS = 2
_ROUNDS = 9
_STEPS = (1, 10, 50)
_COMMITS = {1: 200, 10: 100, 50: 30}


def main() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="floatscope-bench-"))
        settings = {"SQLite": Settings(data=Path(folder))}
        binaries = programs()
        if binaries is not None:
            cluster = Cluster(binaries, fsync=True)
            stack.callback(cluster.remove)
            settings["PostgreSQL"] = Settings(db=cluster.url(cluster.create()))
        engines = {name: stack.enter_context(database_of(each).writer()) for name, each in settings.items()}
        for connection in engines.values():
            _begin(connection)
        for steps in _STEPS:
            rates: dict[str, list[float]] = {name: [] for name in engines}
            cpu: dict[str, list[float]] = {name: [] for name in engines}
            for _ in range(_ROUNDS):
                for name, connection in engines.items():
                    wall, used = _round(connection, steps)
                    rates[name].append(_COMMITS[steps] / wall)
                    cpu[name].append(used / _COMMITS[steps] * 1e3)
            for name in engines:
                middle = sorted(rates[name])[_ROUNDS // 2]
                samples = middle * steps * _KINDS * _STEP_BYTES / 4 / 1e6
                print(
                    f"  {steps} steps a commit, {name}: {spread(rates[name], 'commits/s')}, {samples:.2f} M samples/s"
                )
                print(f"    of this process {spread(cpu[name], 'ms CPU')} a commit")


def _begin(connection: Connection) -> None:
    now = datetime.now(UTC)
    with connection.begin(), Session(connection) as session:
        run = Run(name="bench", state="live", created_at=now, started_at=now, heartbeat_at=now, progress_at=now)
        session.add(run)
        session.flush()
        assert run.id is not None
        session.add_all(Stream(run_id=run.id, name=f"layer/{kind}") for kind in range(_KINDS))
        session.add(Writer(id="0" * 32, run_id=run.id, attempt=1, rank=0, agent="bench", last_seen_at=now))
        session.commit()


def _round(connection: Connection, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of some commits. What they write is random, as mantissas are."""
    count = _COMMITS[steps]
    data = [os.urandom(steps * _STEP_BYTES) for _ in range(_KINDS)]
    began, used = time.perf_counter(), time.process_time()
    for number in range(count):
        rows: list[dict[str, Any]] = [
            {
                "stream_id": kind + 1,
                "attempt": 1,
                "first": number * steps,
                "n": steps,
                "rank": 0,
                "writer": 1,
                "seq": number,
                "flags": 0,
                "data": data[kind],
            }
            for kind in range(_KINDS)
        ]
        with connection.begin():
            append(connection, WalFrame, rows)
            connection.execute(update(Writer).where(col(Writer.number) == 1).values(last_seq=number))
    return time.perf_counter() - began, time.process_time() - used
