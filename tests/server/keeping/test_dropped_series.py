"""Readings of cards and histograms whose finest level has gone are shown by the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import col, select

from floatscope import wire
from floatscope_server.models import Gap, HistTile, ScalarChunk
from floatscope_server.query.devices import device_series
from floatscope_server.query.histogram import layer_histogram
from floatscope_server.query.line import run_named
from floatscope_server.store import Store
from floatscope_server.store.series_thread import SeriesThread
from tests.server.bodies import histogram
from tests.server.keeping import kept

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore

_DAY = 86_400.0


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _power(store: Store, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - of device_series
    asked: dict[str, Any] = {"first": None, "last": None, "points": 1000, **options}
    with store.read() as session:
        (found,) = device_series(session, run_named(session, "run"), **asked)
    return found


def _gaps(store: Store) -> list[tuple[int, int, str]]:
    with store.read() as session:
        return [(gap.first, gap.count, gap.reason) for gap in session.exec(select(Gap))]


def test_readings_of_cards(store: Store, pen: MakePen, clock: Clock) -> None:
    one = pen(store)
    start, n = int(clock.now), 6000
    power = np.random.default_rng(0).uniform(100, 700, n)
    power[100] = 5000.0
    for at in range(0, n, 100):
        readings = tuple(
            wire.Device(
                time_ns=(start + i) * 10**9,
                backend="nvml",
                index=0,
                pci=None,
                name=None,
                vram_total_bytes=None,
                power_watts=float(power[i]),
            )
            for i in range(at, at + 100)
        )
        assert isinstance(one.deliver(wire.Body(devices=readings)), wire.Ack)
    SeriesThread(store).seal(everything=True)
    before = _power(store, points=100)
    clock.now += 7 * _DAY + 5000
    kept.keep(store)
    with store.read() as session:
        first = session.exec(select(ScalarChunk.first_step).where(ScalarChunk.level == 0)).all()
    assert [step // 1000 - start for step in first] == [4096]
    after = _power(store, points=100)
    for name in ("times", "values", "min", "max", "n", "cell"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-12)
    fine = _power(store, first=start, last=start + 1000, points=1000)
    assert fine["max"].max() == 5000.0
    assert 100 <= len(fine["times"]) <= 140
    assert len(_power(store, first=start + 5000, last=start + 5999, points=1000)["times"]) == 1000
    # What comes now for the steps that have gone changes nothing of what is left of them.
    late = wire.Device(
        time_ns=(start + 77) * 10**9,
        backend="nvml",
        index=0,
        pci=None,
        name=None,
        vram_total_bytes=None,
        power_watts=9000.0,
    )
    assert isinstance(one.deliver(wire.Body(devices=(late,))), wire.Ack)
    SeriesThread(store).seal(everything=True)
    again = _power(store, points=100)
    for name in ("times", "values", "min", "max", "n", "cell"):
        np.testing.assert_array_equal(again[name], after[name])
    assert _gaps(store) == [(0, 1, "gpu: late for steps that are not kept one by one any more")]
    border = _power(store, first=start + 4000, last=start + 4499, points=1000)
    assert np.diff(border["times"]).max() <= 16.0


def test_histograms(store: Store, pen: MakePen, make: Make, clock: Clock) -> None:
    layers = 16
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(layers)])
    for first in range(0, 400, 50):
        parts = tuple(
            wire.Histograms(
                kind="grad",
                first_step=step,
                steps=1,
                layers=np.arange(layers, dtype="<u4").tobytes(),
                first=np.full(layers, 200, "<u2").tobytes(),
                length=np.full(layers, 2, "<u2").tobytes(),
                counts=np.full(2 * layers, step + 1, "<u8").tobytes(),
                sampled=np.full(layers, 1000, "<i8").tobytes(),
            )
            for step in range(first, first + 50)
        )
        assert isinstance(one.deliver(wire.Body(histograms=parts)), wire.Ack)
    SeriesThread(store).seal(everything=True)
    kept.keep(store)

    def shown(columns: int) -> dict[str, Any]:
        with store.read() as session:
            run = run_named(session, "run")
            return layer_histogram(session, run, layer="l0", kind="grad", first=None, last=None, columns=columns)

    whole, single = shown(20), shown(400)
    assert single["cell"] == 1
    clock.now += 15 * _DAY
    kept.keep(store)
    with store.read() as session:
        assert 0 not in session.exec(select(HistTile.level).order_by(col(HistTile.level))).all()
    assert shown(20) == whole
    coarse = shown(400)
    assert len(coarse["columns"]) == 50
    assert sum(map(sum, (column["counts"] for column in coarse["columns"]))) == 2 * sum(range(1, 401))
    one.deliver(wire.Body(histograms=(histogram(33, 200, [5]),)))
    one.deliver(wire.Body(histograms=(histogram(400, 200, [5]),)))
    SeriesThread(store).seal(everything=True)
    again = shown(20)["columns"]
    assert again[:-1] == whole["columns"][:-1]
    assert again[-1]["sampled"] == whole["columns"][-1]["sampled"] + 5
    assert _gaps(store) == [(33, 1, "hist/grad: late for steps that are not kept one by one any more")]
    for _ in range(2):
        # What came last is noted, and then old too.
        clock.now += 181 * _DAY
        kept.keep(store)
    assert shown(20)["columns"] == []
