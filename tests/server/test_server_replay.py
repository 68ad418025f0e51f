"""What was observed is made again from what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floatscope import wire
from floatscope_server.observation import Observation
from floatscope_server.query.series import scalar_figures, scalar_series
from floatscope_server.store import Store
from tests.server.bodies import run_of

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen


def _observed(store: Store) -> None:
    """Until the observers have had all that was acknowledged: the writer thread takes this up after them."""
    store.write(lambda _: None)


def test_replay_gives_what_was_observed(store: Store, pen: MakePen, make: Make) -> None:
    seen: list[Observation] = []
    store.observers.append(seen.append)
    one = pen(store, layers=[make.layer(0, "a")])
    for step in range(6):
        one.deliver(
            wire.Body(
                summaries=(make.summaries("grad", step, [[1.0 + step]]), make.summaries("act", step, [[2.0]])),
                scalars=(make.scalars("loss", step, [1.0]), make.scalars("lr", step, [0.1])),
                events=(wire.Event(step=step, kind="skipped", detail={"scale": 2.0}),) if step == 4 else (),
            )
        )
    _observed(store)
    again = list(store.replay(seen[0].run_id, 1, last_steps=3))
    assert [o.seq for o in again] == [4, 5, 6]
    for stored, observed in zip(again, seen[3:], strict=True):
        assert set(stored.body.summaries) == set(observed.body.summaries)
        assert stored.body.scalars == observed.body.scalars
        assert stored.body.events == observed.body.events
        assert (stored.body.first_step, stored.body.steps) == (observed.body.first_step, observed.body.steps)
        assert dict(stored.layers) == dict(observed.layers)


def test_of_a_step_that_comes_twice_the_later_stands_whatever_the_clock_says(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    one = pen(store)
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    clock.now -= 3600
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [2.0]),)))
    run = run_of(store)
    with store.read() as session:
        (series,) = scalar_series(session, run, names=None, first=None, last=None, points=10)
        assert scalar_figures(session, run.id or 0)["loss"]["last"] == 2.0
    assert series.values.tolist() == [2.0]
    assert [o.seq for o in store.replay(run.id or 0, 1, last_steps=10)] == [1, 2]
