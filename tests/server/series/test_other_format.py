"""Shares in a format that layers did not run in, over heat maps: against one histogram after the other."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from floatscope import wire
from floatscope._summary import shares_in_format
from floatscope_server.query.compare import compared_heat_maps
from floatscope_server.query.heatmap import HeatQuestion, heat_map
from floatscope_server.query.line import run_named
from floatscope_server.query.window import TileReader
from floatscope_server.store.series_thread import SeriesThread
from floatscope_server.tiles.codec import is_missing
from tests.server.bodies import layer
from tests.server.sealing import seal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from floatscope_server.query.heatmap import HeatMap
    from floatscope_server.store import Store
    from tests.server.conftest import Make, MakeAgent, MakePen, Pen, Running

_LAYERS = [
    layer(0, "plain"),
    layer(1, "scaled", ("grad", "fp16")),
    layer(2, "executed", ("grad", "e4m3fn")),
    layer(3, "unseen", ("grad", "bf16")),
]
_EVERY = 3
"""Histograms are taken every third step."""


def _histograms(step: int, rows: Mapping[int, np.ndarray]) -> wire.Histograms:
    return wire.Histograms(
        kind="grad",
        first_step=step,
        steps=1,
        layers=np.array(list(rows), "<u4").tobytes(),
        first=np.array([200] * len(rows), "<u2").tobytes(),
        length=np.array([len(row) for row in rows.values()], "<u2").tobytes(),
        sampled=np.array([row.sum() for row in rows.values()], "<i8").tobytes(),
        counts=np.concatenate(list(rows.values())).astype("<u8").tobytes(),
    )


class _Truth:
    """What was trained, by step of the canonical line."""

    def __init__(self) -> None:
        self.top: dict[int, np.ndarray] = {}
        self.scale: dict[int, np.ndarray] = {}
        self.counts: dict[int, np.ndarray] = {}

    def train(self, one: Pen, make: Make, steps: range, rng: np.random.Generator) -> None:
        for known in (self.top, self.scale, self.counts):
            for step in [step for step in known if step >= steps.start]:
                del known[step]
        for first in range(steps.start, steps.stop, 30):
            block = range(first, min(first + 30, steps.stop))
            histograms = []
            for step in block:
                self.top[step] = rng.lognormal(size=4).astype(np.float32)
                self.scale[step] = np.array([1.0, 1024.0 if step < 130 else 256.0, 0.75, 1.0], np.float32)
                if step % _EVERY == 0:
                    counts = self.counts[step] = rng.integers(0, 9, (3, 56))
                    histograms.append(_histograms(step, dict(enumerate(counts))))
            top, scale = (np.array([of[step] for step in block]) for of in (self.top, self.scale))
            shares: dict[str, Any] = dict.fromkeys(
                ("under", "over_high", "floor"), np.full(top.shape, 0.125, np.float32)
            )
            summaries = make.summaries("grad", first, top, scale=scale, **shares)
            one.deliver(wire.Body(summaries=(summaries,), histograms=tuple(histograms)))

    def share(self, name: str, of: str, number: int, steps: range) -> float | None:
        """Of the histograms of ``steps`` together, at the scale with which their largest magnitude met the format."""
        there = [step for step in steps if step in self.counts]
        if not there or number == 3:
            return None
        hist = np.zeros((1, 512), np.int64)
        for step in there:
            hist[0, 200:256] += self.counts[step][number]
        known = [step for step in steps if step in self.top]
        largest = max(float(self.top[step][number]) for step in known)
        after = max(float(self.top[step][number] * self.scale[step][number]) for step in known)
        found = shares_in_format(hist, 0.0, np.inf, after / largest, [name])
        return float(getattr(found, of)[0])


@pytest.fixture
def truth(store: Store, pen: MakePen, make: Make) -> _Truth:
    """Two attempts: the second one trains again from step 200 on."""
    rng = np.random.default_rng(0)
    truth = _Truth()
    truth.train(pen(store, layers=_LAYERS), make, range(260), rng)
    truth.train(pen(store, layers=_LAYERS), make, range(200, 350), rng)
    return truth


def _ask(store: Store, **options: Any) -> HeatMap:  # noqa: ANN401 - of HeatQuestion
    with store.read() as session:
        run = run_named(session, "run")
        return heat_map(session, TileReader(8 << 20), run, HeatQuestion(kind="grad", **options))


@pytest.mark.parametrize("sealed", ["", "tiles", "histograms", "tiles and histograms"])
def test_every_cell_is_what_its_histograms_give_one_by_one(store: Store, truth: _Truth, sealed: str) -> None:
    if "tiles" in sealed:
        seal(store, until=256)
    if "histograms" in sealed:
        SeriesThread(store).seal(everything=True)
    asked = itertools.product(
        (("underflow", "under"), ("overflow", "over_high"), ("floor", "floor")),
        ("e4m3fn", "e5m2"),
        ((None, None, 400), (None, None, 50), (33, 290, 7), (195, 204, 10)),
    )
    for (metric, of), name, (first, last, columns) in asked:
        found = _ask(store, metric=metric, chosen=name, first=first, last=last, columns=columns)
        assert [row["name"] for row in found.rows] == [of_layer.name for of_layer in _LAYERS]
        executed = name == "e4m3fn"
        assert [row.get("from_histograms", False) for row in found.rows] == [True, True, not executed, True]
        for number, column in itertools.product(range(4), range(len(found.columns))):
            start = int(found.columns[column])
            expected = truth.share(name, of, number, range(start, start + found.cell))
            value = found.values[number, column]
            if number == 2 and executed:
                assert value == 0.125
            elif expected is None:
                assert is_missing(value[None])[0], (name, metric, number, start)
            else:
                assert value == pytest.approx(expected, abs=2e-5), (name, metric, number, start, found.cell)


def test_attempts_layers_and_rows_can_be_chosen(store: Store, truth: _Truth) -> None:
    first_alone = _ask(store, metric="underflow", chosen="e5m2", attempt=1, columns=400)
    whole = _ask(store, metric="underflow", chosen="e5m2", columns=400)
    np.testing.assert_array_equal(first_alone.values[:, :200], whole.values[:, :200])
    assert len(first_alone.columns) == 260
    assert (first_alone.values[0, 201:260:3] != whole.values[0, 201:260:3]).any()
    one = _ask(store, metric="underflow", chosen="e5m2", names=("scaled",), columns=400)
    np.testing.assert_array_equal(one.values[0], whole.values[1])
    worst = _ask(store, metric="underflow", chosen="e5m2", rows=1, columns=400)
    (row,) = worst.rows
    assert row["name"] == "plain", "the scale lifts the others"


def test_an_answer_that_would_take_too_long_has_wider_cells(
    store: Store, pen: MakePen, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pen(store, layers=[layer(i, f"l{i}") for i in range(16)])
    counts = {number: np.array([number + 1, *[0] * 54, 3]) for number in range(16)}
    for first in range(0, 600, 100):
        body = wire.Body(
            summaries=(make.summaries("grad", first, np.ones((100, 16))),),
            histograms=tuple(_histograms(step, counts) for step in range(first, first + 100)),
        )
        one.deliver(body)
    SeriesThread(store).seal(everything=True)
    asked: dict[str, Any] = {"metric": "underflow", "chosen": "e5m2", "columns": 600}
    fine = _ask(store, **asked)
    monkeypatch.setattr("floatscope_server.query.derived._MOST_ROWS", 2000)
    wide = _ask(store, **asked)
    assert (fine.cell, wide.cell, wide.values.shape) == (1, 8, (16, 75))
    np.testing.assert_allclose(wide.values, fine.values[:, ::8], rtol=1e-6)
    assert fine.values[0, 0] != fine.values[1, 0]
    monkeypatch.setattr("floatscope_server.query.derived._MOST_ROWS", 1)
    assert _ask(store, **asked).cell == 8, "no cell needs less"


def test_another_histogram_is_another_answer(server: Running, agent: MakeAgent, make: Make) -> None:
    one = agent(run="run", layers=_LAYERS)
    path = "/api/v1/runs/run/heatmap?metric=underflow&format=e5m2&from=0&to=20"

    def deliver(first: int, histograms: tuple[wire.Histograms, ...] = ()) -> None:
        summaries = make.summaries("grad", first, np.ones((10, 4)))
        one.deliver(wire.Body(summaries=(summaries,), histograms=histograms))

    deliver(0)
    deliver(10)
    first = server.get(path)
    known = {"If-None-Match": first.headers["etag"]}
    assert server.get(path, **known).status == 304
    assert first.json["values"][0] == [None] * 20
    one.deliver(wire.Body(histograms=(_histograms(4, {0: np.array([1, *[0] * 54, 3])}),)))
    again = server.get(path, **known)
    assert again.json["values"][0] == [None] * 4 + [0.25] + [None] * 15


def test_compared_runs_have_the_same_cells(
    store: Store, truth: _Truth, pen: MakePen, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _Truth()
    other.train(pen(store, run="other", layers=_LAYERS), make, range(100), np.random.default_rng(1))
    asked = HeatQuestion(kind="grad", metric="underflow", chosen="e5m2", columns=90)
    with store.read() as session:
        runs = [run_named(session, name) for name in ("run", "other")]
        maps = compared_heat_maps(session, TileReader(8 << 20), runs, asked)
    assert [(found.cell, len(found.columns)) for found in maps] == [(4, 88), (4, 25)]
    assert maps[1].values[1, 3] == pytest.approx(other.share("e5m2", "under", 1, range(12, 16)), abs=2e-5)
