"""Kills an engine at every point of every transaction, in forked children; prints what was stored afterwards as JSON.

Run as a program: ``python -m tests.server.alerts.kill_points FOLDER``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlmodel import Session, col, select

from floatscope_server.alerts.engine import AlertEngine
from floatscope_server.alerts.models import Alert, AlertEvent, Delivery, Endpoint
from floatscope_server.alerts.signing import first_secrets
from floatscope_server.models import Writer
from floatscope_server.observation import Observation
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.server.alerts.conftest import Build, Feed

if TYPE_CHECKING:
    _T = TypeVar("_T")

POINTS = ("before", "inside", "after")
NAN = float("nan")
LOSSES: list[dict[int, float]] = [
    dict.fromkeys(range(10), 0.8),
    {10: NAN},
    {20: 0.8},
    {40: 0.8},  # the NaN is over
    {41: 1.25},  # a spike, and
    {42: 1.25},  # a second one: a new entry
    {70: 0.8},
    {71: NAN},
]


class Deadly:
    """A store in whose ``number``-th write the process dies at ``point``."""

    def __init__(self, store: Store, number: int, point: str) -> None:
        self._store, self._number, self._point = store, number, point
        self.writes = 0

    def write(self, fn: Callable[[Session], _T]) -> _T:
        self.writes += 1
        due = self.writes == self._number

        def run(session: Session) -> _T:
            result = fn(session)
            session.flush()
            if due and self._point == "inside":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        if due and self._point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = self._store.write(run)
        if due and self._point == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def read(self) -> AbstractContextManager[Session]:
        return self._store.read()

    def replay(self, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
        return self._store.replay(run_id, attempt, last_steps=last_steps)


class Nobody:
    """A live hub without viewers."""

    def publish(self, run: str, message: dict[str, Any]) -> None:
        pass


def _serve(folder: Path, number: int, point: str) -> None:
    """A server from its start to its end: goes on with the training where the last one was killed."""
    settings = Settings(data=folder, commit_interval_s=0.0001)
    store = Store(settings)
    store.start()
    engine = AlertEngine(Deadly(store, number, point), Nobody(), settings)
    store.observers.append(engine.observe)
    engine.start()
    feed, build = Feed(store), Build()
    with store.read() as session:
        known = session.exec(select(Writer)).first()
        done = 0 if known is None else known.last_seq
        writer = feed.hello(run="run") if known is None else feed.resume(known.id, done)
    if known is None:
        store.write(
            lambda session: session.add(
                Endpoint(
                    url="http://x/", min_severity="info", secrets=first_secrets(None), created_at=datetime.now(UTC)
                )
            )
        )
    for losses in LOSSES[done:]:
        feed.put(writer, build.body(records={step: {"loss": loss} for step, loss in losses.items()}))
        engine.drain()
    engine.drain()
    engine.stop()
    store.stop()


def child(serve: Callable[[], None]) -> bool:
    """Whether a forked child that runs ``serve`` lived to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            serve()
        except BaseException:  # noqa: BLE001 - the parent sees the exit status
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def kills(
    folder: Path, serve: Callable[[Path, int, str], None], *, points: Iterable[str] = POINTS
) -> Iterator[tuple[Path, str, int, bool]]:
    """(data, point, number, killed) of a run for each point of each write: ``serve`` is killed there, and then once
    more left to live."""
    for point in points:
        number = 1
        while True:
            data = folder / f"{point}-{number}"
            lived = child(partial(serve, data, number, point))
            if not lived:
                assert child(partial(serve, data, 0, point))
            yield data, point, number, not lived
            if lived:
                break
            number += 1


def _stored(folder: Path) -> dict[str, Any]:
    settings = Settings(data=folder)
    store = Store(settings)
    store.start()
    with store.read() as session:
        events = session.exec(
            select(Alert, AlertEvent)
            .join(Alert, col(Alert.id) == col(AlertEvent.alert_id))
            .order_by(col(AlertEvent.step), col(Alert.id), col(AlertEvent.kind))
        ).all()
        outbox = session.exec(select(Delivery.event_id)).all()
    store.stop()
    return {
        "events": [[alert.kind, alert.severity, event.kind, event.step] for alert, event in events],
        "ids": [event.id for _, event in events],
        "told": [event.id for _, event in events if event.kind != "superseded"],
        "outbox": list(outbox),
    }


def main(folder: Path) -> None:
    found = [
        {"point": point, "number": number, "killed": killed, **_stored(data)}
        for data, point, number, killed in kills(folder, _serve)
    ]
    print(json.dumps(found))  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
