"""Rectangles of what is stored, against numpy on the raw data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from floatscope import wire
from floatscope_server.query.line import canonical_line
from floatscope_server.query.window import TileReader, Window, source_of
from floatscope_server.store import Store
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.sealing import FULL_PRECISION, seal

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, OpenStore

Array = npt.NDArray[np.float64]

LAYERS = 130
STEPS = 19_000


@dataclass(frozen=True, kw_only=True)
class Truth:
    """[steps, layers] in float64, NaN where nothing was observed."""

    values: dict[Stat, Array]

    def cell(self, stat: Stat, agg: Agg, first: int, end: int, layer: int) -> float:
        column = self.values[stat][first:end, layer]
        column = column[~np.isnan(column)]
        if agg == Agg.MEAN:
            column = column[np.isfinite(column)]
        if not len(column):
            return float("nan")
        return float(column.mean() if agg == Agg.MEAN else column.max() if agg == Agg.MAX else column.min())


def _data(rng: np.random.Generator, steps: int, layers: int) -> dict[str, Any]:
    absmax = np.exp2(rng.normal(0, 4, (steps, layers))).astype(np.float32)
    absmax[rng.random((steps, layers)) < 0.01] = 0
    count = np.full((steps, layers), 1000, np.int64)
    count[:, 70:80] = np.where(np.arange(steps)[:, None] % 8 == 0, 1000, 0)  # read every 8th step
    count[:9000, 100:] = 0  # layers that came later
    nans = np.where(rng.random((steps, layers)) < 0.001, 3, 0)
    return {
        "absmax": absmax,
        "count": count,
        "nans": nans,
        "infs": 0,
        "zeros": rng.integers(0, 900, (steps, layers)),
        "scale": np.float32(4.0),
        "under": np.where(rng.random((steps, layers)) < 0.5, rng.random((steps, layers)), np.nan).astype(np.float32),
        "sumsq": (rng.random((steps, layers)) * 1000),
        "sum": rng.normal(size=(steps, layers)) * 1000,
    }


def _truth(data: dict[str, Any]) -> Truth:
    seen = data["count"] > 0
    finite = data["count"] - data["nans"]

    def of(values: Any) -> Array:  # noqa: ANN401 - arrays
        return np.where(seen, values, np.nan).astype(np.float32).astype(np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        return Truth(
            values={
                Stat.ABSMAX: of(data["absmax"]),
                Stat.RMS: of(np.sqrt(data["sumsq"] / finite)),
                Stat.MEAN: of(data["sum"] / finite),
                Stat.UNDER: of(data["under"]),
                Stat.NONFINITE: of(data["nans"]),
                Stat.ZERO_SHARE: of(data["zeros"] / data["count"]),
                Stat.LOG2_AMAX: of(np.log2(data["absmax"].astype(np.float64) * 4)),
            }
        )


def _deliver(pen: Any, make: Make, data: dict[str, Any], first: int = 0, piece: int = 100) -> None:  # noqa: ANN401
    steps = len(data["absmax"])
    for at in range(0, steps, piece):
        cut = slice(at, min(at + piece, steps))
        fields = {name: value[cut] if np.ndim(value) else value for name, value in data.items()}
        pen.deliver(wire.Body(summaries=(make.summaries("grad", first + at, fields.pop("absmax"), **fields),)))


def _window(store: Store, reader: TileReader, **asked: Any) -> Window:  # noqa: ANN401
    with store.read() as session:
        source = source_of(session, 1, "layer/grad")
        assert source is not None
        line = asked.pop("line", None) or canonical_line(session, 1)
        asked["layers"] = np.asarray(asked["layers"], np.intp)
        return reader.window(session, source, line, **asked)


def _check(window: Window, truth: Truth, layers: npt.NDArray[np.intp], rng: np.random.Generator) -> None:
    for (stat, agg), plane in window.planes.items():
        rows = rng.permutation(len(layers))[:3]
        columns = rng.permutation(plane.shape[1])[:40]
        missing = is_missing(plane)
        assert (np.isnan(plane) == missing).all()
        for row in rows.tolist():
            for column in columns.tolist():
                first = window.first + column * window.cell
                expected = truth.cell(stat, agg, first, first + window.cell, int(layers[row]))
                if np.isnan(expected):
                    assert missing[row, column], (stat, agg, first)
                elif agg == Agg.MEAN:
                    assert plane[row, column] == pytest.approx(expected, rel=1e-4, abs=1e-5), (stat, first)
                else:
                    assert plane[row, column] == np.float32(expected), (stat, agg, first)


@pytest.mark.parametrize("geometry", FULL_PRECISION, ids=["fan 8", "fan 4"])
def test_random_rectangles_equal_numpy(
    store: Store, open_store: OpenStore, pen: MakePen, make: Make, geometry: Geometry
) -> None:
    rng = np.random.default_rng(geometry.fan)
    data = _data(rng, STEPS, LAYERS)
    truth = _truth(data)
    _deliver(pen(store, layers=[make.layer(i, f"l{i}") for i in range(LAYERS)]), make, data)
    seal(store, geometry, until=STEPS - 70)
    stats = list(truth.values)
    reader = TileReader(64 << 20)
    for number in range(300):
        if number == 200:
            store.stop()
            store = open_store()
            reader = TileReader(1 << 20)
        span = int(2 ** rng.uniform(0, np.log2(STEPS)))
        first = int(rng.integers(0, STEPS - span + 1))
        last = first + span - 1
        cell = 1
        while last // cell - first // cell + 1 > 400 or (cell < 4096 and rng.random() < 0.3):
            cell *= 2
        layers = np.sort(rng.permutation(LAYERS)[: rng.integers(1, 12)]) if rng.random() < 0.7 else np.arange(LAYERS)
        wanted = {(stats[rng.integers(len(stats))], (Agg.MAX, Agg.MIN, Agg.MEAN)[rng.integers(3)]) for _ in range(3)}
        window = _window(store, reader, first=first, last=last, cell=cell, wanted=wanted, layers=layers)
        assert window.damaged == 0
        assert window.resolution == cell
        _check(window, truth, layers.astype(np.intp), rng)
