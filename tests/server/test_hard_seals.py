"""Seals of what is sparse or no number at all, and on a disk or database that fails in the middle."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlmodel import select

from floatscope import wire
from floatscope_server.models import WalFrame
from floatscope_server.query.histogram import layer_histogram
from floatscope_server.query.line import run_named
from floatscope_server.query.series import raw_series, scalar_figures, scalar_series
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.parts import MAX_STEP
from floatscope_server.store.sealer import Sealer
from floatscope_server.store.series_thread import SeriesThread
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.statistics import Agg, Stat
from tests.needs import needs
from tests.postgres import Cluster, programs
from tests.server.bodies import histogram
from tests.server.keeping import kept
from tests.server.keeping.kept import TOP
from tests.server.tiles.frames import random_frame
from tests.server.tiles.interposed import Interposed
from tests.server.tiles.sealing import assert_sealed, deliver, judge, open_frames

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, OpenStore, Pen


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _pen(store: Store, pen: MakePen, make: Make) -> Pen:
    return pen(store, layers=[make.layer(i, f"l{i}") for i in range(kept.LAYERS)])


def test_a_stream_with_every_tenth_step(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(0)
    one = _pen(store, pen, make)
    frames = [(0, random_frame(rng, step, 1, range(kept.LAYERS))) for step in range(0, 1000, 10)]
    for _, frame in frames:
        deliver(one, [frame])
    kept.seal(store)
    assert open_frames(store) <= 3
    shown = kept.window(store, 0, 975, cell=16).planes[TOP]
    for column in range(976 // 16):
        inside = [f for _, f in frames if f.first_step // 16 == column]
        seen = np.max([np.where(f.observed, f.fields["absmax"], -np.inf)[0] for f in inside], axis=0)
        there = ~is_missing(shown[:, column])
        assert (there == np.isfinite(seen)).all()
        np.testing.assert_allclose(shown[there, column], seen[there], rtol=1e-6)


def test_a_stretch_without_steps_is_not_said_to_have_been_dropped(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(0)
    one = _pen(store, pen, make)
    for step in (0, 40, 4000, 6000):
        deliver(one, [random_frame(rng, step, 2, range(kept.LAYERS))])
    kept.seal(store)
    assert kept.raw_tiles(store) == [0, 2, 250]
    for first, last in ((0, 999), (10, 4001), (500, 3000), (64, 127)):
        assert kept.window(store, first, last).resolution == 1
    kept.retain(store, raw_keep_steps=16)
    kept.keep(store)
    asked = ((0, 999), (64, 127), (3000, 4001))
    assert [kept.window(store, first, last).resolution for first, last in asked] == [4, 1, 1]


def test_nothing_but_nan(store: Store, pen: MakePen, make: Make) -> None:
    one = _pen(store, pen, make)
    for first in range(0, 1000, 50):
        frame = random_frame(np.random.default_rng(0), first, 50, range(kept.LAYERS))
        of_nan = {"count": 100, "nans": 100, "zeros": 0, "infs": 0, "absmax": 0.0, "absmin": np.inf, "sum": 0.0}
        of_nan |= {"sumsq": 0.0}
        fields = {name: np.full_like(frame.fields[name], value) for name, value in of_nan.items()}
        fields |= {"scale": np.full((50, kept.LAYERS), np.nan, np.float32)}
        deliver(one, [replace(frame, fields=fields)])
        one.deliver(wire.Body(scalars=(make.scalars("loss", first, [np.nan] * 50),)))
    kept.seal(store)
    assert SeriesThread(store).seal(everything=True)
    for cell in (1, 16, 256):
        window = kept.window(store, 0, 767, cell=cell, wanted=[(Stat.NONFINITE, Agg.MAX), TOP, (Stat.RMS, Agg.MAX)])
        assert (window.planes[Stat.NONFINITE, Agg.MAX] == 100).all()
        assert (window.planes[TOP] == 0).all()
        assert is_missing(window.planes[Stat.RMS, Agg.MAX]).all()
    with store.read() as session:
        run = run_named(session, "run")
        (loss,) = scalar_series(session, run, names=["loss"], first=None, last=None, points=50)
        assert run.id is not None
        figures = scalar_figures(session, run.id)["loss"]
    assert loss.n == figures["n"] == 1000
    for values in (loss.values, loss.min, loss.max, np.array([figures["last"], figures["min"], figures["max"]])):
        assert np.isnan(values).all()
    assert kept.gaps(store) == []


@pytest.mark.engines("sqlite")
def test_series_and_histograms_wait_for_a_full_disk(
    store: Store, pen: MakePen, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = _pen(store, pen, make)
    rng = np.random.default_rng(0)
    values = rng.normal(size=3000)
    counts = rng.integers(1, 1 << 40, (300, 200)).tolist()
    for step in range(0, 3000, 100):
        one.deliver(wire.Body(scalars=(make.scalars("loss", step, values[step : step + 100].tolist()),)))
        one.deliver(
            wire.Body(histograms=tuple(histogram(at, 100, counts[at // 10]) for at in range(step, step + 100, 10)))
        )
    before = open_frames(store)
    now = [0.0]
    thread = SeriesThread(store, monotonic=lambda: now[0])

    def limit(pages: int) -> None:
        store.write(lambda session: session.connection().execute(text(f"PRAGMA max_page_count={pages}")).all())

    limit(1)
    for _ in range(2):
        # What frees more than it takes can be sealed all the same; what cannot is let alone.
        thread.seal(everything=True)
        assert sum("free space on its disk" in line for line in caplog.messages) == len(caplog.messages) == 1
    assert 0 < open_frames(store) <= before
    limit(1 << 30)
    now[0] += 1.1
    while thread.seal(everything=True):
        pass
    assert open_frames(store) == 0
    with store.read() as session:
        run = run_named(session, "run")
        steps, found = raw_series(session, run.id or 0, ["loss"], 0, MAX_STEP)["loss"]
        shown = layer_histogram(session, run, layer="l0", kind="grad", first=None, last=None, columns=300)
    assert np.array_equal(steps, np.arange(3000))
    assert np.array_equal(found, values)
    columns: Any = shown["columns"]
    assert [sum(column["counts"]) for column in columns] == [sum(of_step) for of_step in counts]


@pytest.fixture
def own() -> Iterator[Cluster]:
    """A cluster that a test may stop."""
    binaries = programs()
    needs(binaries, "PostgreSQL (initdb)")
    assert binaries is not None
    one = Cluster(binaries, fsync=True)
    yield one
    one.remove()


def test_a_restart_of_postgresql_in_the_middle_of_a_seal(
    own: Cluster,
    pen: MakePen,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(Settings(db=own.url(own.create()), commit_interval_s=1e-4))
    store.start()
    layers = 60
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(layers)])
    rng = np.random.default_rng(0)
    frames = [(0, random_frame(rng, step, 10, range(layers))) for step in range(0, 50, 10)]
    for _, frame in frames:
        deliver(one, [frame])
    judge(store)

    def restart() -> None:
        own.stop(signal.SIGQUIT)
        own.start()

    for job in (2, 3):
        broken = Interposed(store, job, restart)
        sealer = Sealer(broken, lost_after_s=60.0, slack=8, monotonic=lambda: 0.0)
        # The writer may have noticed by itself, and be back before it is asked.
        assert sealer.seal_due() + sealer.failed == 1
        wait_for(lambda: store.writing, "the store to come back")
    sealer = Sealer(store, lost_after_s=60.0, slack=8, monotonic=partial(next, count(0, 1000)))
    while sealer.seal_due():
        pass
    assert_sealed(store, frames, layers=layers, ranks=1)
    one.deliver(wire.Body(scalars=(make.scalars("loss", 0, [float(i) for i in range(50)]),)))
    thread = SeriesThread(store, monotonic=partial(next, count(0, 1000)))
    own.stop(signal.SIGQUIT)
    with pytest.raises(DBAPIError):
        thread.seal(everything=True)
    own.start()
    wait_for(lambda: store.writing, "the store to come back")
    wait_for(lambda: thread.seal(everything=True), "the series")
    with store.read() as session:
        steps, _ = raw_series(session, 1, ["loss"], 0, MAX_STEP)["loss"]
        left = session.exec(select(WalFrame.first)).all()
    assert np.array_equal(steps, np.arange(50))
    assert sorted(left) == [32, 40]
    store.stop()
    assert "Traceback" not in caplog.text
