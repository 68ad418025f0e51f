"""What the engine sees between blocks: silence, lost records, new parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.alerts.engine import AlertEngine
from floatscope_server.alerts.models import Alert, AlertEvent, Delivery, Endpoint, Silence
from floatscope_server.alerts.notices import is_silenced
from floatscope_server.alerts.signing import first_secrets
from floatscope_server.alerts.tuning import ALL_RUNS, set_rule
from floatscope_server.models import Run
from floatscope_server.settings import Settings
from floatscope_server.store import Store

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build, Feed, Screen

Shown = list[tuple[str, str, str, int]]


class Clock:
    """The wall clock, moved by hand."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(store: Store, live: Screen, settings: Settings, clock: Clock) -> Iterator[Callable[[], AlertEngine]]:
    made: list[AlertEngine] = []

    def make() -> AlertEngine:
        while made:
            made.pop().stop()
        started = AlertEngine(store, live, settings, clock=clock)
        store.observers[:] = [started.observe]
        started.start()
        made.append(started)
        return started

    yield make
    for each in made:
        each.stop()


def _alerts(store: Store) -> Shown:
    with store.read() as session:
        rows = session.exec(select(Alert).order_by(col(Alert.id)))
        return [(a.kind, a.severity, a.state, a.first_step) for a in rows]


def _steps(build: Build, first: int, last: int) -> wire.Body:
    return build.body(records={step: {"loss": 2.0 + 0.01 * (step % 3)} for step in range(first, last + 1)})


def test_a_run_without_a_step_is_stalled_until_the_next_one(
    build: Build, store: Store, feed: Feed, clock: Clock, engine: Callable[[], AlertEngine]
) -> None:
    judging = engine()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, 0, 9))
    judging.drain()
    clock.ahead = timedelta(seconds=55)
    judging.drain()
    assert _alerts(store) == []
    clock.ahead = timedelta(seconds=65)
    judging.drain()
    judging.drain()
    assert _alerts(store) == [("stalled", "critical", "firing", 9)]
    clock.ahead = timedelta()
    feed.put(writer, _steps(build, 10, 11))
    judging.drain()
    assert _alerts(store) == [("stalled", "critical", "resolved", 9)]


def test_a_server_that_was_down_blames_nobody(
    build: Build, store: Store, feed: Feed, clock: Clock, engine: Callable[[], AlertEngine]
) -> None:
    judging = engine()
    feed.put(feed.hello(run="run"), _steps(build, 0, 9))
    judging.drain()
    clock.ahead = timedelta(seconds=600)
    judging = engine()
    judging.drain()
    assert _alerts(store) == []
    clock.ahead = timedelta(seconds=661)
    judging.drain()
    assert _alerts(store) == [("stalled", "critical", "firing", 9)]
    judging = engine()
    clock.ahead = timedelta(seconds=800)
    judging.drain()
    assert _alerts(store) == [("stalled", "critical", "firing", 9)], "it is still the same one"


def test_a_run_that_has_ended_is_not_stalled(
    build: Build, store: Store, feed: Feed, clock: Clock, engine: Callable[[], AlertEngine]
) -> None:
    judging = engine()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, 0, 9))
    feed.bye(writer)
    store.tick()
    clock.ahead = timedelta(seconds=600)
    judging.drain()
    assert _alerts(store) == []


def test_lost_records_are_told_once(build: Build, store: Store, feed: Feed, engine: Callable[[], AlertEngine]) -> None:
    judging = engine()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, 0, 9))
    feed.gap(writer, first=10, last=14, count=5, reason="queue_full")
    judging.drain()
    assert _alerts(store) == [("data_gap", "info", "firing", 14)]
    feed.put(writer, _steps(build, 15, 80))
    judging.drain()
    assert _alerts(store) == [("data_gap", "info", "resolved", 14)]
    judging = engine()
    judging.drain()
    assert _alerts(store) == [("data_gap", "info", "resolved", 14)]


def test_new_parameters_count_from_the_next_step_on(
    build: Build, store: Store, feed: Feed, engine: Callable[[], AlertEngine]
) -> None:
    judging = engine()
    writer = feed.hello(run="run")
    feed.put(writer, build.body(records={s: {"loss": 2.0 if s < 20 else 2.5} for s in range(21)}))
    judging.drain()
    now = datetime.now(UTC)
    tight = {"loss_spike": {"ratio": 1.1, "mads": 0.0}}
    store.write(lambda session: set_rule(session, ALL_RUNS, None, tight, now))
    judging.rules_changed()
    judging.drain()
    assert _alerts(store) == [], "what was judged before stays judged"
    feed.put(writer, build.body(records={21: {"loss": 2.5}}))
    judging.drain()
    assert _alerts(store) == [("loss_spike", "critical", "firing", 21)]

    def of_the_run(session: Session) -> None:
        run_id = session.exec(select(Run.id)).one()
        assert run_id is not None
        set_rule(session, run_id, "default", {}, now)

    store.write(of_the_run)
    judging.rules_changed()
    feed.put(writer, build.body(records={s: {"loss": 2.0} for s in range(22, 50)} | {50: {"loss": 2.5}}))
    judging.drain()
    assert _alerts(store) == [("loss_spike", "critical", "resolved", 21)]


def test_an_alert_names_the_settings_of_its_framework(
    build: Build, store: Store, feed: Feed, engine: Callable[[], AlertEngine]
) -> None:
    judging = engine()
    writer = feed.hello(run="run")
    records = {s: {"lm loss": 2.0 if s < 10 else 6.0, "grad norm": 1.0 + 0.01 * s} for s in range(13)}
    feed.put(writer, build.body(records=records))
    judging.drain()
    with store.read() as session:
        alert = session.exec(select(Alert).where(Alert.kind == "loss_divergence")).one()
    assert "--clip-grad" in alert.message
    assert "--lr" in alert.message_zh


def _deliveries(store: Store) -> list[str]:
    with store.read() as session:
        told = select(Delivery.type).join(Alert, col(Alert.id) == col(Delivery.alert_id)).order_by(col(Delivery.id))
        return list(session.exec(told.where(Alert.kind != "stalled")))


def _endpoint(store: Store) -> None:
    store.write(
        lambda session: session.add(
            Endpoint(url="http://127.0.0.1:9/", secrets=first_secrets(None), created_at=datetime.now(UTC))
        )
    )


def test_what_fires_is_told_again_until_somebody_has_seen_it(
    build: Build, store: Store, feed: Feed, clock: Clock, engine: Callable[[], AlertEngine]
) -> None:
    _endpoint(store)
    judging = engine()
    feed.put(feed.hello(run="run"), build.body(records={0: {"loss": 2.0}, 1: {"loss": math.nan}, 2: {"loss": 0.0}}))
    judging.drain()
    assert _deliveries(store) == ["alert.firing"] * 2
    for hours, reminders in ((3.9, 0), (4.1, 2), (7.9, 2), (8.2, 4)):
        clock.ahead = timedelta(hours=hours)
        judging.drain()
        told = [kind for kind in _deliveries(store) if kind == "alert.reminder"]
        assert len(told) == reminders
    with store.read() as session:
        ids = list(session.exec(select(AlertEvent.id)))
    assert len(ids) == len(set(ids))

    def acknowledge(session: Session) -> None:
        for alert in session.exec(select(Alert)):
            alert.acknowledged_at = datetime.now(UTC)

    store.write(acknowledge)
    before = _deliveries(store)
    clock.ahead = timedelta(hours=30)
    judging.drain()
    assert _deliveries(store) == before


def test_a_silence_keeps_quiet_until_it_ends(
    build: Build, store: Store, feed: Feed, clock: Clock, engine: Callable[[], AlertEngine]
) -> None:
    _endpoint(store)
    now = datetime.now(UTC)
    store.write(
        lambda session: session.add(
            Silence(run="run", kind="nonfinite", until=now + timedelta(hours=5), created_at=now)
        )
    )
    judging = engine()
    for run in ("run", "other"):
        feed.put(feed.hello(run=run), build.body(records={0: {"loss": 2.0}, 1: {"loss": math.nan}}))
    judging.drain()
    assert _alerts(store) == [("nonfinite", "critical", "firing", 1)] * 2
    assert _deliveries(store) == ["alert.firing"], "of the other run"
    clock.ahead = timedelta(hours=4.5)
    judging.drain()
    assert _deliveries(store).count("alert.reminder") == 1
    clock.ahead = timedelta(hours=5.1)
    judging.drain()
    assert _deliveries(store).count("alert.reminder") == 2


@pytest.mark.parametrize(
    ("covers", "silenced"),
    [
        ({}, True),
        ({"run": "run"}, True),
        ({"run": "other"}, False),
        ({"kind": "limit_near"}, True),
        ({"kind": "underflow"}, False),
        ({"layer": "h.1"}, True),
        ({"layer": "h.1.up"}, True),
        ({"layer": "h"}, True),
        ({"layer": "h.1.u"}, False),
        ({"run": "run", "layer": "h.2"}, False),
    ],
)
def test_what_a_silence_covers(covers: dict[str, Any], silenced: bool) -> None:
    now = datetime.now(UTC)
    silence = Silence(until=now + timedelta(seconds=1), created_at=now, **covers)
    assert is_silenced([silence], "run", "limit_near", "h.1.up", now) == silenced
    assert not is_silenced([silence], "run", "limit_near", "h.1.up", now + timedelta(seconds=1))
