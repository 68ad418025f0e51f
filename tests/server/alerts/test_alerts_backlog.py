"""The engine behind the store: what does not fit its queue, and marks while a backlog is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from sqlmodel import select

from floatscope_server.alerts.engine import AlertEngine
from floatscope_server.alerts.models import Evaluated
from floatscope_server.observation import Observation
from floatscope_server.rules import RunWindow
from floatscope_server.rules.run import Watched
from floatscope_server.rules.verdict import Finding
from floatscope_server.settings import Settings
from floatscope_server.store import Store

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build, Feed, Screen


def test_what_does_not_fit_the_queue_is_judged_once_and_nothing_before_it_again(
    build: Build, store: Store, feed: Feed, live: Screen, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: Counter[int] = Counter()
    judge = RunWindow.judge

    def counted(window: RunWindow, observation: Observation, watched: Watched | None = None) -> Iterator[Finding]:
        judged[observation.seq] += 1
        yield from judge(window, observation, watched)

    monkeypatch.setattr(RunWindow, "judge", counted)
    engine = AlertEngine(store, live, settings, queue_blocks=1)

    def twice(observation: Observation) -> None:
        engine.observe(observation)
        engine.observe(observation)

    store.observers[:] = [twice]
    engine.start()
    try:
        writer = feed.hello(run="run")
        for step in range(50):
            feed.put(writer, build.body(records={step: {"loss": 2.0}}))
        engine.drain()
    finally:
        engine.stop()
    assert engine.overflows > 0
    assert judged == dict.fromkeys(range(1, 51), 1)


def test_marks_move_while_a_backlog_is_judged(
    build: Build, store: Store, feed: Feed, live: Screen, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatscope_server.alerts.engine._FLUSH_S", 0.0)
    writer = feed.hello(run="run")
    for step in range(5):
        feed.put(writer, build.body(records={step: {"loss": 2.0}}))
    marks: list[int] = []
    replay = store.replay

    def watched(run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
        for observation in replay(run_id, attempt, last_steps=last_steps):
            yield observation
            with store.read() as session:
                marks.extend(session.exec(select(Evaluated.seq)).all())

    monkeypatch.setattr(store, "replay", watched)
    engine = AlertEngine(store, live, settings)
    engine.start()
    try:
        engine.drain()
    finally:
        engine.stop()
    assert marks == [1, 2, 3, 4, 5]


def test_the_store_is_asked_to_wait_before_the_queue_is_full(
    build: Build, store: Store, feed: Feed, live: Screen, settings: Settings
) -> None:
    engine = AlertEngine(store, live, settings, queue_blocks=4)
    store.observers[:] = [engine.observe]
    writer = feed.hello(run="run")
    waits = []
    for step in range(4):
        feed.put(writer, build.body(records={step: {"loss": 2.0}}))
        waits.append(engine.behind())
    assert (waits, engine.overflows) == ([False, False, True, True], 0)
    engine.start()
    engine.drain()
    engine.stop()
    assert not engine.behind()
