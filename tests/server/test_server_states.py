"""What state a run is in, by what its writers said last and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlmodel import select

from floatscope import wire
from floatscope_server.models import Attempt
from floatscope_server.store import Store
from tests.databases import Disk
from tests.server.bodies import run_of

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore


@pytest.mark.parametrize(("seconds", "state"), [(0, "live"), (59, "live"), (61, "lost")])
def test_silence_is_lost_until_it_ends(
    store: Store, pen: MakePen, make: Make, clock: Clock, seconds: float, state: str
) -> None:
    one = pen(store)
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    changed: list[str] = []
    store.run_observers.append(changed.append)
    clock.now += seconds
    store.tick()
    assert run_of(store).state == state
    if state == "lost":
        assert run_of(store).finished_at is not None
        one.deliver(wire.Body(scalars=(make.scalars("loss", 1, [1.0]),)))
        assert run_of(store).state == "live"
        assert run_of(store).finished_at is None


def test_beats_without_steps_are_stalled_not_lost(store: Store, pen: MakePen, clock: Clock) -> None:
    one = pen(store)
    for _ in range(40):
        clock.now += 10
        one.ask(wire.Beat())
    assert run_of(store).state == "stalled"


def test_slow_steps_are_not_a_stall(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    one = pen(store)
    for step in range(5):
        clock.now += 50
        one.deliver(wire.Body(scalars=(make.scalars("loss", step, [1.0]),)))
    clock.now += 200
    one.ask(wire.Beat())
    store.tick()
    assert run_of(store).state == "live"


@pytest.mark.parametrize(
    ("reasons", "state"), [(["finished", "finished"], "finished"), (["finished", "failed"], "failed")]
)
def test_goodbyes_end_a_run(store: Store, pen: MakePen, reasons: list[str], state: str) -> None:
    pens = [pen(store, rank=rank, world=2) for rank in (0, 1)]
    pens[0].ask(wire.Bye(seq=0, reason=reasons[0]))
    assert run_of(store).state == "live"
    pens[1].ask(wire.Bye(seq=0, reason=reasons[1]))
    assert run_of(store).state == state
    with store.read() as session:
        (attempt,) = session.exec(select(Attempt)).all()
    assert attempt.ended_at is not None
    assert attempt.end_reason == ", ".join(sorted(set(reasons)))


def test_silence_while_the_server_was_down_is_not_held_against_the_agents(
    open_store: OpenStore, pen: MakePen, clock: Clock
) -> None:
    store = open_store()
    pen(store)
    store.stop()
    clock.now += 3600
    again = open_store()
    again.tick()
    assert run_of(again).state == "live"


def test_a_failed_commit_makes_no_stalled_run_live(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    one = pen(store)
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    for _ in range(10):
        clock.now += 10
        one.ask(wire.Beat())
    assert run_of(store).state == "stalled"
    disk = Disk(store)
    disk.broken()
    one.ask(wire.Beat())
    assert store.counters.failed_commits == 1
    disk.well()
    one.ask(wire.Beat())
    assert run_of(store).state == "stalled"
