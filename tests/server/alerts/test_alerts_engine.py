"""The engine on a real store: every transition once, whatever happens in between."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, col, select

from floatscope import wire
from floatscope_server.alerts.engine import AlertEngine, alerts_of
from floatscope_server.alerts.models import Alert, AlertEvent, Delivery, Endpoint, Evaluated
from floatscope_server.alerts.signing import first_secrets
from floatscope_server.models import Run, StepEvent
from floatscope_server.observation import Observation
from floatscope_server.query.skipped import skipped_steps
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings
from floatscope_server.store import Store

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build, Feed, Screen

NAN = math.nan
_T = TypeVar("_T")
Engines = Callable[..., AlertEngine]


@pytest.fixture
def engines(store: Store, live: Screen, settings: Settings) -> Iterator[Engines]:
    """Makes started engines on the store; those that still run are stopped at the end."""
    made: list[AlertEngine] = []

    def make(**options: Any) -> AlertEngine:  # noqa: ANN401 - of the engine
        engine = AlertEngine(options.pop("store", store), live, settings, **options)
        store.observers[:] = [engine.observe]
        engine.start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.stop()


def _told(store: Store) -> list[tuple[str, str, int]]:
    """(alert kind, event, step) in the order in which they were stored."""
    with store.read() as session:
        rows = session.exec(
            select(Alert.kind, AlertEvent.kind, AlertEvent.step)
            .join(Alert, col(Alert.id) == col(AlertEvent.alert_id))
            .order_by(col(AlertEvent.step), col(Alert.id))
        ).all()
        return [(kind, event, step) for kind, event, step in rows]


def _add_endpoint(store: Store, **options: Any) -> None:  # noqa: ANN401 - of Endpoint
    def add(session: Session) -> None:
        session.add(
            Endpoint(url="http://127.0.0.1:9/", secrets=first_secrets(None), created_at=datetime.now(UTC), **options)
        )

    store.write(add)


def _steps(build: Build, losses: dict[int, float]) -> wire.Body:
    return build.body(records={step: {"loss": loss} for step, loss in losses.items()})


def test_an_alert_fires_is_told_and_resolves(
    build: Build, store: Store, feed: Feed, live: Screen, engines: Engines
) -> None:
    _add_endpoint(store, min_severity="critical")
    _add_endpoint(store, kinds=["loss_spike"])
    engine = engines()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, dict.fromkeys(range(5), 2.0)))
    feed.put(writer, _steps(build, {5: NAN}))
    engine.drain()
    feed.put(writer, _steps(build, dict.fromkeys(range(6, 40), 2.0)))
    engine.drain()
    assert _told(store) == [("nonfinite", "firing", 5), ("nonfinite", "resolved", 25)]
    with store.read() as session:
        run_id = session.exec(select(Run.id)).one()
        assert run_id is not None
        (alert,) = alerts_of(session, run_id)
        deliveries = session.exec(select(Delivery)).all()
        events = {event.id for event in session.exec(select(AlertEvent))}
    assert (alert["state"], alert["severity"], alert["reason"], alert["value"]) == (
        "resolved",
        "critical",
        "loss",
        "NaN",
    )
    assert (alert["first_step"], alert["last_step"], alert["since_step"]) == (5, 5, 5)
    assert alert["resolved_reason"] == "cleared"
    assert {d.endpoint_id for d in deliveries} == {1}
    assert {d.event_id for d in deliveries} == events
    bodies = [json.loads(d.body) for d in deliveries]
    assert [b["type"] for b in bodies] == ["alert.firing", "alert.resolved"]
    assert bodies[0]["data"]["state"] == "firing"
    assert bodies[0]["data"]["run_url"] == "http://127.0.0.1:6160/#/run/run"
    assert [m["alert"]["state"] for m in live.messages] == ["firing", "resolved"]
    assert live.messages[1]["alert"] == alert


def test_an_alert_that_gains_severity_goes_on_as_a_new_entry(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    _add_endpoint(store, min_severity="info")
    engine = engines()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, {**dict.fromkeys(range(10), 0.8), 10: 1.25, 11: 1.25}))
    engine.drain()
    assert _told(store) == [
        ("loss_spike", "firing", 10),
        ("loss_spike", "superseded", 11),
        ("loss_spike", "firing", 11),
    ]
    with store.read() as session:
        first, second = session.exec(select(Alert).order_by(col(Alert.id))).all()
        assert (first.state, first.severity, second.state, second.severity) == (
            "resolved",
            "info",
            "firing",
            "critical",
        )
        assert second.detail["replaces"] == first.id
        types = [json.loads(d.body)["data"]["severity"] for d in session.exec(select(Delivery))]
        assert types == ["info", "critical"]


def test_a_restart_doubles_nothing_and_loses_nothing(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    first = engines()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, {0: 2.0, 1: NAN}))
    first.drain()
    first.stop()
    store.observers.clear()
    feed.put(writer, _steps(build, dict.fromkeys(range(2, 30), 2.0)))
    feed.put(writer, _steps(build, {30: NAN}))
    second = engines()
    second.drain()
    expected = [("nonfinite", "firing", 1), ("nonfinite", "resolved", 21), ("nonfinite", "firing", 30)]
    assert _told(store) == expected
    second.stop()
    engines().drain()
    assert _told(store) == expected
    with store.read() as session:
        assert session.exec(select(Evaluated.seq)).all() == [3]


def test_a_window_is_rebuilt_in_silence(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    first = engines()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, dict.fromkeys(range(20), 1.0)))
    first.drain()
    first.stop()
    second = engines()
    feed.put(writer, _steps(build, {20: 2.5}))
    second.drain()
    assert _told(store) == [("loss_spike", "firing", 20)]


def test_what_was_long_before_a_restart_counts_after_it(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    first = engines()
    writer = feed.hello(run="run")
    losses = {step: 1.0 + 0.45 * min(max(step - 100, 0), 100) / 100 for step in range(700)}
    for begin in range(0, 700, 50):
        feed.put(writer, _steps(build, {step: losses[step] for step in range(begin, begin + 50)}))
    first.drain()
    first.stop()
    second = engines()
    feed.put(writer, _steps(build, {700: 1.6, 701: 1.6}))
    second.drain()
    assert ("loss_divergence", "firing", 701) in _told(store)


def test_what_does_not_fit_the_queue_is_read_from_the_store(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    engine = engines(queue_blocks=1)
    writer = feed.hello(run="run")
    gate = threading.Event()
    plain = engine.observe

    def burst(observation: Observation) -> None:
        plain(observation)
        plain(observation)
        gate.set()

    store.observers[:] = [burst]
    for step in range(0, 200, 4):
        loss = NAN if step in (40, 120) else 2.0
        feed.put(writer, _steps(build, dict.fromkeys(range(step, step + 4), loss)))
    engine.drain()
    assert gate.is_set()
    assert engine.overflows > 0
    assert _told(store) == [
        ("nonfinite", "firing", 40),
        ("nonfinite", "resolved", 63),
        ("nonfinite", "firing", 120),
        ("nonfinite", "resolved", 143),
    ]


class Failing:
    """A store whose next writes fail, as those of a full disk do: nothing of them is stored."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.failures = 0

    def write(self, fn: Callable[[Session], _T]) -> _T:
        def run(session: Session) -> _T:
            result = fn(session)
            if self.failures:
                self.failures -= 1
                raise OperationalError("COMMIT", {}, Exception("database or disk is full"))
            return result

        return self.store.write(run)

    def read(self) -> AbstractContextManager[Session]:
        return self.store.read()

    def replay(self, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
        return self.store.replay(run_id, attempt, last_steps=last_steps)


def test_a_full_disk_delays_alerts(
    build: Build, store: Store, feed: Feed, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatscope_server.store.backoff.FIRST_S", 0.01)
    failing = Failing(store)
    engine = engines(store=failing)
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, {0: 2.0}))
    engine.drain()
    failing.failures = 3
    feed.put(writer, _steps(build, {1: NAN}))
    engine.drain()
    feed.put(writer, _steps(build, dict.fromkeys(range(2, 30), 2.0)))
    engine.drain()
    assert failing.failures == 0
    assert _told(store) == [("nonfinite", "firing", 1), ("nonfinite", "resolved", 21)]


def test_the_rank_that_saw_it_first_hand_is_named(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    layers = build.layers("a", "b", "c")
    engine = engines()
    writers = [feed.hello(run="run", rank=rank, world=4, layers=layers) for rank in range(4)]
    for rank in (0, 1, 2, 3):
        summaries = [build.summary("grad", 0, 3, nans={0: 1, 1: 1, 2: 1})]
        if rank == 2:
            summaries.append(build.summary("act", 0, 3, nans={1: 1, 2: 1}))
        feed.put(writers[rank], build.body(*summaries, records={0: {"loss": NAN if rank == 2 else 2.0}}))
    engine.drain()
    assert _told(store) == [("nonfinite", "firing", 0)]
    with store.read() as session:
        alert = session.exec(select(Alert)).one()
    assert (alert.rank, alert.layer) == (2, "b")
    assert alert.detail["producer"]["after"] == "a"
    assert "b" in alert.message
    assert "rank 2" in alert.message_zh


def test_gradients_that_were_reduced_name_no_rank(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    engine = engines()
    writer = feed.hello(run="run", world=2, layers=build.layers("a"))
    feed.put(writer, build.body(build.summary("grad", 0, 1, nans={0: 1}), records={0: {"loss": 2.0}}))
    engine.drain()
    with store.read() as session:
        alert = session.exec(select(Alert)).one()
    assert (alert.rank, alert.detail["rank"]) == (None, "unknown (reduced)")


def test_the_end_of_a_run_is_no_proof_of_health(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    engine = engines()
    writer = feed.hello(run="run")
    feed.put(writer, _steps(build, {0: NAN}))
    feed.bye(writer)
    store.tick()
    engine.drain()
    assert _told(store) == [("nonfinite", "firing", 0)]
    with store.read() as session:
        assert session.exec(select(Alert.state)).one() == "firing"


def test_a_new_attempt_closes_what_the_one_before_left_open(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    engine = engines()
    feed.put(feed.hello(run="run", attempt=1), _steps(build, {50: NAN}))
    engine.drain()
    feed.put(feed.hello(run="run", attempt=2), _steps(build, {40: NAN}))
    engine.drain()
    with store.read() as session:
        rows = session.exec(select(Alert).order_by(col(Alert.id))).all()
        assert [(a.attempt, a.state, a.resolved_reason) for a in rows] == [
            (1, "resolved", "run_restarted"),
            (2, "firing", None),
        ]


def test_runs_do_not_mix(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    engine = engines()
    for name, loss in (("one", NAN), ("two", 2.0)):
        feed.put(feed.hello(run=name), _steps(build, {0: 2.0, 1: loss}))
    engine.drain()
    with store.read() as session:
        assert session.exec(select(Alert.run)).all() == ["one"]


def test_a_run_that_cannot_be_read_holds_up_no_other(
    build: Build, store: Store, feed: Feed, engines: Engines, wait: Callable[[Callable[[], bool]], None]
) -> None:
    class Flawed:
        """The real store, but for one run."""

        def __init__(self) -> None:
            self.failures = 0
            self.whole = False

        def write(self, fn: Callable[[Session], _T]) -> _T:
            return store.write(fn)

        def read(self) -> AbstractContextManager[Session]:
            return store.read()

        def replay(self, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]:
            if run_id == 1 and not self.whole:
                self.failures += 1
                raise ValueError("a frame of this run cannot be decoded")
            return store.replay(run_id, attempt, last_steps=last_steps)

    flawed = Flawed()
    engine = engines(store=flawed)
    bad, good = feed.hello(run="bad"), feed.hello(run="good")
    for writer in (bad, good, bad, good):
        feed.put(writer, _steps(build, {0: 1.0}))
    feed.put(good, _steps(build, {1: NAN}))
    feed.put(bad, _steps(build, {1: NAN}))
    wait(lambda: _told(store) == [("nonfinite", "firing", 1)])
    # The blocks that came meanwhile asked for no further try.
    assert flawed.failures <= 2
    flawed.whole = True
    engine.drain()
    assert _told(store) == [("nonfinite", "firing", 1)] * 2


def test_a_skipped_step_is_stored_with_the_layer_of_its_alert(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    engine = engines()
    writer = feed.hello(run="run", layers=build.layers("a", "b", "c"))
    for step in range(4):
        bad = {1: 1} if step == 2 else None
        feed.put(
            writer,
            build.body(
                build.summary("grad", step, 3, infs=bad),
                records={step: {"loss": 1.0}},
                events=[wire.Event(step=step, kind="skipped")] if bad else [],
            ),
        )
    engine.drain()
    with store.read() as session:
        run_id = session.exec(select(Run.id)).one()
        assert run_id is not None
        (alert,) = alerts_of(session, run_id)
        event = session.exec(select(StepEvent)).one()
        (skipped,) = skipped_steps(session, TileReader(1 << 20), run_id)
    assert alert["layer"] == event.layer == skipped["layer"] == "b"
    assert event.certainty is not None


def _read(
    build: Build, step: int, *, only_gradients: bool = False, weights: bool = True, loss: float = NAN
) -> wire.Body:
    """A step whose second of three layers breaks; ``weights`` says whether those are sound."""
    bad = {} if math.isfinite(loss) else {1: 10, 2: 10}
    kinds = [build.summary("grad", step, 3, nans={0: 10, **bad} if bad else None)]
    if not only_gradients:
        kinds += [
            build.summary("act", step, 3, nans=bad),
            build.summary("act_in", step, 3, nans={2: 10} if bad else None),
        ]
        kinds.append(build.summary("weight", step, 3, nans=None if weights else {0: 10, 1: 10, 2: 10}))
    return build.body(*kinds, records={step: {"loss": loss}})


def _nonfinite(store: Store) -> list[Alert]:
    with store.read() as session:
        return list(session.exec(select(Alert).where(Alert.kind == "nonfinite").order_by(col(Alert.id))))


def test_a_step_that_was_read_more_closely_names_the_layer(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    engine = engines()
    writer = feed.hello(run="run", layers=build.layers("a", "b", "c"))
    feed.put(writer, _read(build, 7, loss=2.0))
    feed.put(writer, _read(build, 8, only_gradients=True))
    engine.drain()
    (alert,) = _nonfinite(store)
    assert alert.detail["producer"]["how"] == "not_later_than"
    assert "if it happens again with sound weights, the layer is named" in alert.message
    feed.put(writer, _read(build, 9, only_gradients=True))
    feed.put(writer, _read(build, 10))
    feed.put(writer, _read(build, 11))
    engine.drain()
    (alert,) = _nonfinite(store)
    assert (alert.first_step, alert.layer, alert.rank, alert.severity) == (8, "b", 0, "critical")
    assert (alert.detail["producer"]["how"], alert.detail["producer_step"]) == ("module", 10)
    assert "The loss is NaN at step 8" in alert.message
    assert "It came again, and step 10 was read more closely. It came from b: its inputs" in alert.message
    assert "第 10 步有更详细的记录。来源是 b" in alert.message_zh


def test_weights_that_are_spoilt_are_said_to_be(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    engine = engines()
    writer = feed.hello(run="run", layers=build.layers("a", "b", "c"))
    feed.put(writer, _read(build, 7, loss=2.0))
    feed.put(writer, _read(build, 8, only_gradients=True))
    feed.put(writer, _read(build, 11, weights=False))
    feed.put(writer, _read(build, 12))
    engine.drain()
    (alert,) = _nonfinite(store)
    assert alert.detail["producer"]["how"] == "not_later_than", "what the first step showed stays"
    assert alert.detail["parameters"] == {"layer": "a", "step": 11}
    assert "By step 11 the parameters of a were not finite themselves" in alert.message
    assert "The last step before it is 7; with the flight recorder on, a dump of the run holds it." in alert.message


@pytest.mark.parametrize(
    ("spoilt", "how", "said"),
    [
        (None, "module", "It came from b: its inputs and parameters were finite"),
        ({1: 10}, "parameters", "The parameters of b were not finite any more before this step"),
    ],
)
def test_an_update_that_is_not_finite_spoils_the_weights_of_the_next_step(
    build: Build, store: Store, feed: Feed, engines: Engines, spoilt: dict[int, float] | None, how: str, said: str
) -> None:
    engine = engines()
    writer = feed.hello(run="run", layers=build.layers("a", "b", "c"))
    sound = _read(build, 7, loss=2.0)
    updates = build.body(build.summary("update", 7, 3, nans=spoilt)).summaries
    feed.put(writer, msgspec.structs.replace(sound, summaries=(*sound.summaries, *updates)))
    broken = _read(build, 8)
    unread = tuple(part for part in broken.summaries if part.kind != "weight")
    feed.put(writer, msgspec.structs.replace(broken, summaries=unread))
    engine.drain()
    (alert,) = _nonfinite(store)
    assert (alert.first_step, alert.layer, alert.detail["producer"]["how"]) == (8, "b", how)
    assert said in alert.message


def test_weights_that_nobody_has_read_name_no_layer_later(
    build: Build, store: Store, feed: Feed, engines: Engines
) -> None:
    engine = engines()
    writer = feed.hello(run="run", layers=build.layers("a", "b", "c"))
    feed.put(writer, _read(build, 8, only_gradients=True))
    later = _read(build, 10)
    unread = tuple(part for part in later.summaries if part.kind != "weight")
    feed.put(writer, msgspec.structs.replace(later, summaries=unread))
    engine.drain()
    (alert,) = _nonfinite(store)
    assert alert.detail["producer"]["how"] == "not_later_than"
    assert alert.detail["unread_weights"] == 3
    assert "producer_step" not in alert.detail


def test_what_is_found_long_after_is_another_matter(build: Build, store: Store, feed: Feed, engines: Engines) -> None:
    engine = engines()
    writer = feed.hello(run="run", layers=build.layers("a", "b", "c"))
    feed.put(writer, _read(build, 8, only_gradients=True))
    feed.put(writer, _read(build, 609))
    engine.drain()
    (alert,) = _nonfinite(store)
    assert alert.detail["producer"]["how"] == "not_later_than"
