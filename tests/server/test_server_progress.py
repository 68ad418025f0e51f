"""Steps that go back, or that nobody can have reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlmodel import select

from floatscope import wire
from floatscope_server.models import Gap
from floatscope_server.query.line import run_named
from floatscope_server.query.runs import run_list
from floatscope_server.query.series import scalar_series
from floatscope_server.store import Store
from floatscope_server.store.glance import Glance
from floatscope_server.store.reach import OUT_OF_REACH

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen


def _item(store: Store) -> dict[str, object]:
    with store.read() as session:
        (item,) = run_list(session)
    return item


def test_a_run_that_went_back_and_sends_is_live(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    one = pen(store)
    for step in (*range(0, 1000, 100), *range(500, 620)):
        clock.now += 5
        one.deliver(wire.Body(scalars=(make.scalars("loss", step, [1.0]),)))
    store.tick()
    assert _item(store)["state"] == "live"


@pytest.mark.parametrize(("wild", "kept"), [(10**9 + 2, True), (10**9 + 3, False), (10**12, False), (1 << 41, False)])
def test_a_wild_step_is_left_out(store: Store, pen: MakePen, make: Make, wild: int, kept: bool) -> None:
    one = pen(store, layers=[make.layer(0, "a")])
    body = wire.Body(scalars=(make.scalars("loss", 0, [1.0] * 3),), summaries=(make.summaries("grad", 0, [[1.0]] * 3),))
    one.deliver(body)
    steps = np.array([3, wild], "<i8")
    one.deliver(
        wire.Body(
            scalars=(wire.Scalars(name="loss", steps=steps.tobytes(), values=np.ones(2).tobytes()),),
            summaries=(make.summaries("grad", wild, [[1.0]]),),
            events=(wire.Event(step=wild, kind="skipped"),),
        )
    )
    with store.read() as session:
        assert session.exec(select(Gap.reason, Gap.count)).all() == ([] if kept else [(OUT_OF_REACH, 3)])
        (series,) = scalar_series(session, run_named(session, "run"), names=["loss"], first=None, last=None, points=99)
    assert series.steps.tolist() == ([0, 1, 2, 3, wild] if kept else [0, 1, 2, 3])
    assert _item(store)["steps"] == (wild + 1 if kept else 4)


def test_a_first_block_is_measured_by_itself(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store)
    one.deliver(wire.Body(scalars=(make.scalars("loss", 10**10, [1.0]),)))
    assert _item(store)["steps"] == 10**10 + 1
    two = pen(store, run="other")
    two.deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]), make.scalars("loss", 10**10, [1.0]))))
    with store.read() as session:
        assert [item["steps"] for item in run_list(session, ["other"])] == [1]


def test_the_worst_of_late_follows_what_came_last(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "a", ("grad", "fp16"))])
    for first, top in ((0, 1.0), (10**8, 60000.0), (3, 2.0)):
        one.deliver(wire.Body(summaries=(make.summaries("grad", first, [[top]] * 3),)))
    worst = _item(store)["worst"]
    assert isinstance(worst, dict)
    assert worst["step"] == 10**8
    for first in range(16, 80, 16):
        one.deliver(wire.Body(summaries=(make.summaries("grad", first, [[4.0]] * 16),)))
    worst = _item(store)["worst"]
    assert isinstance(worst, dict)
    assert (worst["step"], worst["headroom"]) == (16, pytest.approx(13.999, abs=0.001))


def test_the_short_curve_follows_steps_that_go_back(make: Make) -> None:
    glance = Glance()

    def add(first: int, values: list[float]) -> None:
        glance.add(wire.Body(scalars=(make.scalars("loss", first, values),)), {}, rank=0)

    add(0, [1.0] * 10)
    add(5 * 10**8, [9.0])
    assert 9.0 in glance.sparkline
    add(10, [2.0] * 40)
    assert 9.0 not in glance.sparkline
    assert len(glance.sparkline) > 20
    add(20, [3.0] * 1000)
    assert 30 <= len(glance.sparkline) <= 60
    assert max(glance.sparkline) == 3.0
    assert glance.sparkline[-10:] == [3.0] * 10
