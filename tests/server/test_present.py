"""What is answered from memory, against the database, after everything that can happen to a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import select

from floatscope import wire
from floatscope_server.models import Stream
from floatscope_server.query.answers import Answers
from floatscope_server.store.present import Present, RunNow
from floatscope_server.store.sealer import Sealer
from floatscope_server.store.series_thread import SeriesThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from floatscope_server.store import Store
    from tests.server.conftest import Agent, Make, MakeAgent, Reply, Running, Start

PATHS = (
    "latest",
    "latest?kind=act&metrics=absmax,headroom",
    "latest?layers=l1&metrics=rms",
    "tail?metric=headroom",
    "tail?metric=absmax&since=500",
    "tail?metric=rms&layers=l0,l2&most=7",
    "tail?kind=act",
)


@pytest.fixture
def server(start: Start) -> Running:
    """One in which nothing is sealed but by the test, and no answer is kept."""
    one = start()
    _quiet(one)
    return one


def _quiet(server: Running) -> None:
    server.services.sealer.stop()
    server.services.series.stop()
    server.services.answers = Answers(0)


def _facts(now: RunNow | None) -> object:
    if now is None:
        return None
    streams = {
        name: (of.id, of.geometry, dict(of.states), of.frames, of.frames and of.frames[-1].id)
        for name, of in now.streams.items()
    }
    row = now.row
    last_steps = {attempt: dict(of) for attempt, of in now.last_steps.items()}
    of_row = row.id, row.name, row.attempt, row.world
    return of_row, now.attempts, streams, last_steps, dict(now.series)


def _fresh(store: Store, run: str) -> RunNow | None:
    """As the database has it."""
    present = Present(shared=False)
    store._in_writer(lambda connection: present.load(connection, run))
    return present.of(run)


class _Nothing(Present):
    def of(self, name: str) -> RunNow | None:
        return None

    def want(self, name: str) -> bool:
        return False


class Twice:
    """Asks from memory and from the database."""

    def __init__(self, server: Running, wait_for: Callable[[Callable[[], object], str], None]) -> None:
        self.server = server
        self._wait_for = wait_for
        self.commit: dict[str, str] = {}

    def remember(self, run: str = "run") -> None:
        """Have the run in memory, with what its answers are made of."""
        store = self.server.services.store
        store.keep_present(run)
        self._wait_for(lambda: store.present.of(run), "the run to be kept")
        for path in PATHS:
            self.server.get(f"/api/v1/runs/{run}/{path}")

    def check(self, run: str = "run", *, memory: bool = True) -> None:
        """``memory``: all of it must come from there."""
        services = self.server.services
        present = services.store.present
        assert present.of(run) is not None
        assert _facts(present.of(run)) == _facts(_fresh(services.store, run))
        paths = [*PATHS, *(f"tail?metric=headroom&commit={commit}" for commit in self.commit.values())]
        before = services.remembered
        answers = {path: self._ask(run, path) for path in paths}
        if memory:
            assert services.remembered == before + len(paths)
        services.store.present = _Nothing(shared=False)
        before = services.remembered
        for path, answer in answers.items():
            again = self._ask(run, path)
            assert (answer.body, answer.headers["etag"]) == (again.body, again.headers["etag"]), path
        assert services.remembered == before
        services.store.present = present
        self.commit[run] = answers["tail?metric=headroom"].json["commit"]

    def _ask(self, run: str, path: str) -> Reply:
        reply = self.server.get(f"/api/v1/runs/{run}/{path}")
        assert reply.status == 200, reply.body
        return reply


@pytest.fixture
def twice(server: Running, wait_for: Callable[[Callable[[], object], str], None]) -> Twice:
    return Twice(server, wait_for)


def _body(make: Make, first: int, steps: int, seed: int = 0, **scalars: Any) -> wire.Body:  # noqa: ANN401
    rng = np.random.default_rng((first, seed))
    top = 2.0 ** rng.normal(0, 4, (steps, 3))
    nans = (rng.random((steps, 3)) < 0.02).astype(np.int64)
    return wire.Body(
        summaries=(
            make.summaries("grad", first, top, nans=nans),
            make.summaries("act", first, top[:, :2] * 3, layers=[0, 2]),
        ),
        scalars=(make.scalars("loss", first, rng.normal(size=steps).tolist()), *scalars.values()),
    )


def _layers(make: Make) -> list[wire.Layer]:
    return [make.layer(0, "l0", ("grad", "fp16")), make.layer(1, "l1", ("grad", "bf16")), make.layer(2, "l2")]


def test_memory_says_what_the_database_says(server: Running, twice: Twice, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=_layers(make), world=2)
    other = agent(layers=_layers(make), rank=1, world=2)
    one.deliver(_body(make, 0, 40))
    twice.remember()
    twice.check()
    one.deliver(_body(make, 40, 10))
    other.deliver(_body(make, 0, 50, seed=1))
    twice.check()
    for first in range(50, 650, 50):
        for seed, each in enumerate((one, other)):
            each.deliver(_body(make, first, 50, seed))
    twice.check(memory=False)
    twice.check()
    # A layer that is new, and steps that came before.
    one.deliver(wire.Body(layers=(make.layer(3, "l3", ("grad", "fp16")),), summaries=_fourth(make, 650)))
    one.deliver(_body(make, 600, 20, seed=5))
    twice.check(memory=False)
    twice.check()


def _fourth(make: Make, step: int) -> tuple[wire.Summaries, ...]:
    return (make.summaries("grad", step, [[0.5]], layers=[3]),)


def test_memory_follows_sealing_and_what_comes_late(
    server: Running, twice: Twice, agent: MakeAgent, make: Make
) -> None:
    store = server.services.store
    one = agent(layers=_layers(make))
    for first in range(0, 600, 50):
        one.deliver(_body(make, first, 50))
    twice.remember()
    sealer, series = Sealer(store, lost_after_s=60.0), SeriesThread(store)
    store.observers.append(sealer.observe)
    one.deliver(_body(make, 600, 50))
    server.services.alerts.stop()
    kept = store.present.of("run")
    assert kept is not None
    end = time.monotonic() + 30.0
    while sealer.seal_due() or not _sealed(store):
        assert time.monotonic() < end
    assert series.seal(everything=True)
    assert store.present.of("run") not in (None, kept), "renewed with each transaction"
    twice.check(memory=False)
    twice.check()
    one.deliver(_body(make, 100, 3, seed=7))
    twice.check()
    one.deliver(_body(make, 650, 5))
    twice.check()
    while sealer.seal_due():
        pass
    twice.check(memory=False)


def _sealed(store: Store) -> bool:
    now = store.present.of("run")
    return now is not None and all(of.states[1][0] > 0 for name, of in now.streams.items() if "layer" in name)


def test_memory_follows_attempts(server: Running, twice: Twice, agent: MakeAgent, make: Make) -> None:
    one = agent(layers=_layers(make))
    one.deliver(_body(make, 0, 60, extra=make.scalars("once", 5, [1.0, float("nan")])))
    twice.remember()
    second = agent(layers=_layers(make), attempt=2, world=3)
    twice.check()
    second.deliver(_body(make, 30, 10, seed=2))
    twice.check()
    found = server.json("/api/v1/runs/run/latest")
    assert found["scalars"]["loss"]["step"] == 39
    assert found["scalars"]["once"] == {"step": 6, "value": "NaN"}
    # What the first attempt still had.
    one.deliver(_body(make, 60, 5))
    second.deliver(_body(make, 40, 1, seed=2))
    twice.check()
    # One that began at a step before: all of it is superseded.
    third = agent(layers=_layers(make), attempt=3)
    third.deliver(_body(make, 10, 2, seed=3))
    twice.check()
    # Steps that come again, in no order; the end of the other series is superseded and has to be looked up.
    third.deliver(_body(make, 8, 2, seed=4))
    back = wire.Scalars(
        name="loss",
        steps=np.array([13, 9, 13, 12], "<i8").tobytes(),
        values=np.array([1.0, 2.0, 3.0, 4.0], "<f8").tobytes(),
    )
    third.deliver(wire.Body(scalars=(back,)))
    twice.check()
    assert server.json("/api/v1/runs/run/latest")["scalars"]["loss"] == {"step": 13, "value": 3.0}
    second.deliver(_body(make, 50, 2, seed=4, other=make.scalars("late", 5, [1.0] * 10)))
    twice.check(memory=False)
    assert server.json("/api/v1/runs/run/latest")["scalars"]["late"] == {"step": 7, "value": 1.0}


def test_memory_forgets_a_run_that_is_deleted_and_takes_its_name_for_another(
    server: Running, twice: Twice, agent: MakeAgent, make: Make
) -> None:
    store = server.services.store
    one = agent(layers=_layers(make))
    one.deliver(_body(make, 0, 20))
    one.ask(wire.Bye(seq=one.seq, reason="finished"))
    twice.remember()
    store.tick()
    assert store.delete_run("run")
    assert server.get("/api/v1/runs/run/latest").status == 404
    again = agent(layers=_layers(make)[:2])
    again.deliver(wire.Body(summaries=(make.summaries("grad", 5, [[1.0, 2.0]]),)))
    twice.remember()
    twice.check()
    assert server.json("/api/v1/runs/run/latest")["steps"] == [5, 5]


def test_a_run_that_follows_a_deleted_one_has_nothing_of_it(
    server: Running, twice: Twice, agent: MakeAgent, make: Make, http: Callable[..., Reply]
) -> None:
    store, keeper = server.services.store, server.services.keeper
    one = agent(layers=_layers(make))
    one.deliver(_body(make, 0, 20))
    paths = [*PATHS, "scalars", "heatmap", "layers/l0/series"]
    for path in paths:
        assert server.get(f"/api/v1/runs/run/{path}").status == 200
    twice.remember()
    numbers = _numbers(store)
    one.ask(wire.Bye(seq=one.seq, reason="finished"))
    store.tick()
    assert http(server.url + "/api/v1/runs/run", method="DELETE").status == 202
    end = time.monotonic() + 30.0
    while _numbers(store):
        keeper.step()
        assert time.monotonic() < end
    again = agent(layers=_layers(make))
    again.deliver(_body(make, 5, 3, seed=9))
    assert _numbers(store).isdisjoint(numbers)
    twice.remember()
    twice.check()
    found = server.json("/api/v1/runs/run/scalars?names=loss")
    assert found[0]["steps"] == [5, 6, 7]
    assert server.json("/api/v1/runs/run/tail?metric=absmax")["steps"] == [5, 6, 7]
    assert server.json("/api/v1/runs/run/heatmap?metric=absmax")["columns"] == [5, 6, 7]


def _numbers(store: Store) -> set[int]:
    with store.read() as session:
        return {number for number in session.exec(select(Stream.id)) if number is not None}


def test_memory_is_right_after_a_restart(
    server: Running,
    start: Start,
    agent: MakeAgent,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
) -> None:
    one = agent(layers=_layers(make))
    one.deliver(_body(make, 0, 30))
    one.close()
    server.stop()
    second = start()
    _quiet(second)
    twice = Twice(second, wait_for)
    twice.remember()
    twice.check()
    one.address = second.address
    one.connect()
    one.deliver(_body(make, 30, 10))
    twice.check()


def test_what_nobody_has_said_of_makes_all_be_forgotten(
    server: Running, twice: Twice, agent: MakeAgent, make: Make
) -> None:
    store = server.services.store
    one = agent(layers=_layers(make))
    one.deliver(_body(make, 0, 20))
    twice.remember()

    def write(statement: str) -> None:
        store.write(lambda session: session.connection().exec_driver_sql(statement))

    write("UPDATE meta SET value = 'x' WHERE key = 'none'")
    assert store.present.of("run") is not None, "no part of it"
    write("UPDATE wal_frame SET n = n")
    assert store.present.of("run") is None
    twice.remember()
    with pytest.raises(ZeroDivisionError):
        store.write(lambda _: 1 // 0)
    twice.check()
    write("WITH a AS (SELECT 1) UPDATE meta SET value = 'x' WHERE key = 'none'")
    assert store.present.of("run") is None, "of what is not understood anything may have changed"


def test_only_runs_that_are_looked_at_are_kept(
    server: Running, agent: MakeAgent, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = server.services.store
    agents: dict[str, Agent] = {f"r{n}": agent(run=f"r{n}", layers=_layers(make)) for n in range(18)}
    for run in agents:
        store.keep_present(run)
    store.write(lambda _: None)
    assert [run for run in agents if store.present.of(run) is None] == ["r0", "r1"], "16 of them"
    assert not store.present.want("r5"), "it is kept"
    monkeypatch.setattr("floatscope_server.store.present._UNASKED_S", -1.0)
    agents["r5"].deliver(_body(make, 0, 1))
    assert store.present.of("r5") is None
    store.keep_present("none")
    store.write(lambda _: None)
    assert store.present.of("none") is None
