"""Scalars in the open tail, in chunks and partly in both, against a plain dictionary of points."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from sqlmodel import Session, func, select

from floatscope import wire
from floatscope_server.models import Gap, ScalarChunk, ScalarSeries, StreamState, WalFrame
from floatscope_server.query import series as query
from floatscope_server.query.line import run_named
from floatscope_server.query.series import raw_series, scalar_figures, scalar_series
from floatscope_server.query.tails import Tails
from floatscope_server.settings import Settings
from floatscope_server.store import Store, shapes
from floatscope_server.store.pyramid import Shape
from floatscope_server.store.series_sealer import MovedError, Prepared, commit, due, prepare
from floatscope_server.store.series_thread import SeriesThread
from tests.server.bodies import scalars

if TYPE_CHECKING:
    from tests.server.conftest import Clock, MakePen

_VALUES = st.sampled_from([0.0, -1.5, 3.0, 1e300, -1e300, math.nan, math.inf, -math.inf]) | st.floats(-9, 9)
_SMALL = Shape(size=(32, 8), fewest=8, unit=1, joined=shapes.SCALARS.joined, decode=shapes.SCALARS.decode)


@st.composite
def _blocks(draw: st.DrawFn) -> tuple[int, int, dict[str, dict[int, float]]]:
    """Attempt, rank, and points by name."""
    scattered = st.dictionaries(st.integers(0, 60) | st.integers(0, 3000), _VALUES, min_size=1, max_size=30)
    names = draw(st.dictionaries(st.sampled_from(["loss", "lr"]), scattered, max_size=1))
    # A stretch that others overlap: late and repeated steps are the rule here.
    start, length = draw(st.integers(0, 150)), draw(st.integers(1, 80))
    values = draw(st.lists(_VALUES, min_size=1, max_size=5))
    names["loss"] = names.get("loss", {}) | {start + i: values[i % len(values)] for i in range(length)}
    return draw(st.sampled_from([1, 1, 1, 2])), draw(st.sampled_from([0, 0, 0, 1])), names


@dataclass
class _Oracle:
    points: dict[tuple[int, int, str], dict[int, float]] = field(default_factory=dict)

    def add(self, attempt: int, rank: int, block: dict[str, dict[int, float]]) -> None:
        for name, points in block.items():
            self.points.setdefault((attempt, rank, name), {}).update(points)

    def line(self, name: str) -> dict[int, float]:
        """The canonical line of the lowest rank that has the name."""
        starts = {a: min(min(p) for (of, _, _), p in self.points.items() if of == a) for a, _, _ in self.points}
        ends = {a: max(max(p) for (of, _, _), p in self.points.items() if of == a) for a, _, _ in self.points}
        last = {1: min(ends.get(1, -1), starts[2] - 1) if 2 in starts else ends.get(1, -1), 2: ends.get(2, -1)}
        ranks = [
            rank
            for (a, rank, of), points in self.points.items()
            if of == name and min(points) <= last[a] and max(points) >= starts[a] and starts[a] <= last[a]
        ]
        return {
            step: value
            for (a, rank, of), points in self.points.items()
            if of == name and rank == min(ranks, default=-1)
            for step, value in points.items()
            if step <= last[a]
        }


@contextmanager
def _store(folder: Path) -> Iterator[Store]:
    store = Store(Settings(data=folder, commit_interval_s=1e-6))
    store.start()
    try:
        yield store
    finally:
        store.stop()


class _Writers:
    """An agent for each attempt and rank."""

    def __init__(self) -> None:
        self._seqs: dict[str, int] = {}

    def deliver(self, store: Store, attempt: int, rank: int, block: dict[str, dict[int, float]]) -> None:
        writer = f"{attempt:016}{rank:016}"
        identity = wire.Identity(run="run", writer=writer, rank=rank, world=2, attempt=attempt, started_ns=1)
        hello = wire.Hello(
            protocol_min=1, protocol_max=1, agent="test", identity=identity, wall_ns=attempt, monotonic_ns=0
        )
        answers: list[wire.ServerMessage] = []
        if writer not in self._seqs:
            self._seqs[writer] = 0
            store.submit(writer, hello, answers.append)
        series = tuple(
            wire.Scalars(
                name=name,
                steps=np.array(list(points), "<i8").tobytes(),
                values=np.array(list(points.values()), "<f8").tobytes(),
            )
            for name, points in block.items()
        )
        self._seqs[writer] += 1
        store.submit(writer, wire.make_block(self._seqs[writer], wire.Body(scalars=series)), answers.append)
        store.write(lambda _: None)
        assert isinstance(answers[-1], wire.Ack), answers


def _expected(points: dict[int, float], cell: int) -> dict[int, tuple[float, float, float]]:
    """Mean, smallest and largest by cell."""
    cells: dict[int, list[float]] = {}
    for step in sorted(points):
        cells.setdefault(step // cell * cell, []).append(points[step])
    found = {}
    for start, values in cells.items():
        finite = [value for value in values if math.isfinite(value)]
        highest = math.nan if any(map(math.isnan, values)) else max(values)
        mean = sum(value / len(finite) for value in finite) if finite else highest
        found[start] = mean, float(np.fmin.reduce(values)), highest
    return found


def _check(store: Store, oracle: _Oracle, tails: Tails, first: int, last: int, points: int) -> None:
    with store.read() as session:
        run = run_named(session, "run")
        assert run.id is not None
        raw = raw_series(session, run.id, None, 0, 1 << 50)
        figures = scalar_figures(session, run.id, tails)
        shown = scalar_series(session, run, names=None, first=first, last=last, points=points, tails=tails)
    for name in ("loss", "lr"):
        line = oracle.line(name)
        steps, values = raw.get(name, (np.empty(0), np.empty(0)))
        assert steps.tolist() == sorted(line)
        np.testing.assert_array_equal(values, [line[step] for step in sorted(line)])
        if line:
            every = list(line.values())
            kept: Any = figures[name]
            # Counted as they came where no step came twice.
            assert kept["last_step"] == max(line)
            # Of two zeros either may be the smaller one; adding 0 makes them one.
            np.testing.assert_equal(kept["last"] + 0.0, line[max(line)] + 0.0)
            np.testing.assert_equal(kept["min"] + 0.0, np.fmin.reduce(every) + 0.0)
            np.testing.assert_equal(kept["max"] + 0.0, np.fmax.reduce(every) + 0.0)
            assert kept["n"] == len(line)
        inside = {step: value for step, value in line.items() if first <= step <= last}
        found = {series.name: series for series in shown}.get(name)
        # Another rank may be the lowest one that has points there.
        if found is None or not inside:
            continue
        assert found.n == len(inside)
        assert len(found.steps) <= points
        cells = _expected(inside, found.cell)
        assert found.steps.tolist() == list(cells)
        for at, (mean, low, high) in enumerate(cells.values()):
            np.testing.assert_equal(found.min[at] + 0.0, low + 0.0)
            np.testing.assert_equal(found.max[at] + 0.0, high + 0.0)
            size = max((abs(value) for value in inside.values() if math.isfinite(value)), default=0.0)
            np.testing.assert_allclose(found.values[at], mean, rtol=1e-9, atol=1e-12 * size)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(_blocks() | st.sampled_from(["seal", "restart"]), min_size=4, max_size=12),
    st.integers(0, 80),
    st.integers(0, 300) | st.integers(0, 3000),
    st.integers(1, 20),
)
def test_points_are_those_of_a_dictionary_whatever_is_sealed(
    actions: list[Any], first: int, length: int, points: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(shapes, "SCALARS", _SMALL)
        patch.setattr(query, "SCALARS", _SMALL)
        oracle, writers, tails = _Oracle(), _Writers(), Tails()
        with _store(Path(folder)) as store:
            pass
        rest = list(actions)
        while rest:
            with _store(Path(folder)) as store:
                while rest and (action := rest.pop(0)) != "restart":
                    if action == "seal":
                        SeriesThread(store).seal(everything=True)
                    else:
                        writers.deliver(store, *action)
                        oracle.add(*action)
                    if oracle.points:
                        _check(store, oracle, tails, first, first + length, points)
                if oracle.points:
                    _check(store, oracle, tails, first, first + length, points)


def _frames(session: Session) -> int:
    return session.exec(select(func.count()).select_from(WalFrame)).one()


def test_whatever_statement_of_a_transaction_fails_nothing_of_it_is_there(store: Store, pen: MakePen) -> None:
    one = pen(store)
    rng = np.random.default_rng(0)
    values = rng.normal(size=3000)
    for start in range(0, 3000, 100):
        one.deliver(wire.Body(scalars=(scalars("loss", start, values[start : start + 100].tolist()),)))
        if start == 1000:
            SeriesThread(store).seal(everything=True)
    failed = 0
    while True:
        with store.read() as session:
            (item,) = due(session, 0.0, everything=True)
            before = _frames(session)
            prepared = prepare(session, item)
        at = 0

        def failing(*_: object, stop: int = failed) -> None:
            nonlocal at
            if at == stop:
                raise RuntimeError("killed")
            at += 1

        def attempt(session: Session, prepared: Prepared = prepared) -> None:
            connection = session.connection()
            event.listen(connection, "before_cursor_execute", failing)
            try:
                commit(session, prepared)
            finally:
                event.remove(connection, "before_cursor_execute", failing)

        try:
            store.write(attempt)
        except RuntimeError:
            with store.read() as session:
                assert _frames(session) == before
                steps, found = raw_series(session, 1, ["loss"], 0, 9999)["loss"]
            assert steps.tolist() == list(range(3000))
            assert found.tolist() == values.tolist()
            failed += 1
            continue
        break
    assert failed > 3
    with store.read() as session:
        assert _frames(session) == 0
        assert raw_series(session, 1, ["loss"], 0, 9999)["loss"][1].tolist() == values.tolist()


def test_of_two_that_seal_the_same_one_does(store: Store, pen: MakePen) -> None:
    one = pen(store)
    one.deliver(wire.Body(scalars=(scalars("loss", 0, [1.0, 2.0]),)))
    with store.read() as session:
        (item,) = due(session, 0.0, everything=True)
        twice = [prepare(session, item) for _ in range(2)]
    store.write(lambda session: commit(session, twice[0]))
    with pytest.raises(MovedError):
        store.write(lambda session: commit(session, twice[1]))
    with store.read() as session:
        assert session.exec(select(StreamState.epoch)).one() == 1
        assert session.exec(select(ScalarChunk.n)).all() == [2]


def test_what_a_restart_needs_stays_and_the_rest_goes(store: Store, pen: MakePen, clock: Clock) -> None:
    one = pen(store)
    for start in range(0, 10_000, 50):
        one.deliver(wire.Body(scalars=(scalars("loss", start, [0.5] * 50),)))
    sealer = SeriesThread(store)
    assert sealer.seal() >= 1
    with store.read() as session:
        # Nobody has judged it: the rules would be replayed from the first step.
        assert session.exec(select(func.min(WalFrame.first))).one() == 5900
        (row,) = session.exec(select(ScalarSeries)).all()
        assert (row.sealed, row.n) == (5900, 10_000)
    assert sealer.seal() == 0
    one.ask(wire.Bye(seq=one.seq + 1, reason="done"))
    clock.now += 3601
    store.tick()
    sealer.seal()
    with store.read() as session:
        assert _frames(session) == 0


def test_shares_stay_until_every_rank_has_reported_the_step(store: Store, pen: MakePen) -> None:
    ranks = [pen(store, rank=rank, world=2) for rank in (0, 1)]
    for start in range(0, 1000, 50):
        ranks[0].deliver(wire.Body(scalars=(scalars("grad_sumsq_share", start, [0.5] * 50),)))
    for start in range(0, 500, 50):
        ranks[1].deliver(wire.Body(scalars=(scalars("grad_sumsq_share", start, [0.5] * 50),)))
    SeriesThread(store).seal(everything=True)
    with store.read() as session:
        left = session.exec(select(func.min(WalFrame.first)).where(WalFrame.rank == 0)).one()
        assert left == 500
        assert session.exec(select(func.count()).select_from(WalFrame).where(WalFrame.rank != 0)).one() == 0


def test_too_many_names_are_left_out_and_said_so(store: Store, pen: MakePen) -> None:
    names = 20_000
    one = pen(store)
    for start in range(0, names + 1000, 1000):
        block = tuple(scalars(f"s{n}", start, [1.0]) for n in range(start, start + 1000))
        one.deliver(wire.Body(scalars=block))
    one.deliver(wire.Body(scalars=(scalars("s3", names, [2.0]),)))
    with store.read() as session:
        assert session.exec(select(func.count()).select_from(ScalarSeries)).one() == names
        (gap,) = session.exec(select(Gap)).all()
        assert (gap.count, gap.reason) == (1000, "more than 20000 scalar series in one attempt")
        assert raw_series(session, 1, ["s3"], 0, 1 << 40)["s3"][1].tolist() == [1.0, 2.0]


def test_of_a_step_that_came_twice_the_later_one_is_shown_wherever_it_is(store: Store, pen: MakePen) -> None:
    one = pen(store)
    one.deliver(wire.Body(scalars=(scalars("loss", 0, [float(step) for step in range(5000)]),)))
    one.deliver(wire.Body(scalars=(scalars("loss", 3999, [9e9]),)))
    SeriesThread(store).seal(everything=True)
    one.deliver(wire.Body(scalars=(scalars("loss", 3999, [0.5]), scalars("loss", 10, [-3.0]))))
    for _ in range(2):
        with store.read() as session:
            (series,) = scalar_series(session, run_named(session, "run"), names=None, first=None, last=None, points=10)
        assert series.n == 5000
        assert series.cell == 512
        assert series.max.tolist() == [511.0, 1023.0, 1535.0, 2047.0, 2559.0, 3071.0, 3583.0, 4095.0, 4607.0, 4999.0]
        assert series.min[0] == -3.0
        assert series.min[7] == 0.5
        SeriesThread(store).seal(everything=True)


@pytest.mark.parametrize("trouble", ["disk", "mistake"])
def test_a_stream_that_cannot_be_sealed_is_let_alone_for_ever_longer(
    tmp_path: Path, trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    with _store(tmp_path) as store:
        _Writers().deliver(store, 1, 0, {"loss": {step: float(step) for step in range(50)}})
        thread = SeriesThread(store, monotonic=lambda: now[0])

        def fails(*_: object, **__: object) -> None:
            if trouble == "disk":
                store.write(lambda session: session.execute(text("PRAGMA max_page_count=1")))
                store.write(lambda session: session.execute(text("CREATE TABLE large AS SELECT zeroblob(1000000)")))
            raise RuntimeError("a mistake of ours")

        with monkeypatch.context() as patched:
            patched.setattr("floatscope_server.store.series_thread.prepare", fails)
            for wait, failed in ((0.0, 1), (0.5, 1), (0.6, 2), (1.9, 2), (0.2, 3), (3.9, 3), (0.2, 4)):
                now[0] += wait
                assert thread.seal(everything=True) == 0
                assert len(caplog.records) == failed
        assert "scalar of run 1 could not be sealed, and stays in the tail; trying again in 8 s" in caplog.text
        assert ("free space on its disk" if trouble == "disk" else "report it") in caplog.text
        store.write(lambda session: session.execute(text("PRAGMA max_page_count=1000000")))
        now[0] += 8.1
        assert thread.seal(everything=True) == 1
