"""Rectangles of what is stored, against numpy on the raw data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from sqlmodel import Session, col, delete, select

from floatscope import wire
from floatscope_server.models import StreamState, TileRaw
from floatscope_server.query.line import Stretch, canonical_line
from floatscope_server.query.window import TileReader, Window, source_of
from floatscope_server.store import Store
from floatscope_server.tiles.codec import decode, encode, is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.sealing import FULL_PRECISION, seal

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, OpenStore

Array = npt.NDArray[np.float64]

LAYERS = 130


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
    count[: steps // 2, 100:] = 0  # layers that came later
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


@pytest.mark.parametrize(
    ("steps", "rectangles"), [(2600, 60), pytest.param(19_000, 300, marks=pytest.mark.long)], ids=["few", "many"]
)
@pytest.mark.parametrize("geometry", FULL_PRECISION, ids=["fan 8", "fan 4"])
def test_random_rectangles_equal_numpy(
    store: Store, open_store: OpenStore, pen: MakePen, make: Make, geometry: Geometry, steps: int, rectangles: int
) -> None:
    rng = np.random.default_rng(geometry.fan)
    data = _data(rng, steps, LAYERS)
    truth = _truth(data)
    _deliver(pen(store, layers=[make.layer(i, f"l{i}") for i in range(LAYERS)]), make, data)
    seal(store, geometry, until=steps - 70)
    stats = list(truth.values)
    reader = TileReader(64 << 20)
    for number in range(rectangles):
        if number == 2 * rectangles // 3:
            store.stop()
            store = open_store()
            reader = TileReader(1 << 20)
        span = int(2 ** rng.uniform(0, np.log2(steps)))
        first = int(rng.integers(0, steps - span + 1))
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
    assert reader.tiles.fetched > rectangles


ALL = np.arange(3, dtype=np.intp)
TOP = Stat.ABSMAX, Agg.MAX


def _plain(store: Store, pen: MakePen, make: Make, values: npt.NDArray[np.float64], first: int = 0) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(values.shape[1])])
    for at in range(0, len(values), 128):
        one.deliver(wire.Body(summaries=(make.summaries("grad", first + at, values[at : at + 128]),)))


@pytest.mark.parametrize("geometry", FULL_PRECISION, ids=["fan 8", "fan 4"])
@pytest.mark.parametrize("until", [None, 2000], ids=["sealed", "tail"])
def test_a_step_that_was_trained_again_is_in_no_cell_of_the_line(
    store: Store, pen: MakePen, make: Make, geometry: Geometry, until: int | None
) -> None:
    rng = np.random.default_rng(1)
    first, again = rng.lognormal(size=(3000, 3)), rng.lognormal(size=(2000, 3))
    first[2100:2300] = 1e9  # superseded
    first[2099, 1] = 1e6
    _plain(store, pen, make, first)
    _plain(store, pen, make, again, first=2100)
    seal(store, geometry, until=until)
    line = np.concatenate((first[:2100], again)).astype(np.float32)
    reader = TileReader(16 << 20)
    cell = 1
    while cell <= 4096:
        window = _window(store, reader, first=0, last=4099, cell=cell, wanted={TOP}, layers=ALL)
        for column in range(4099 // cell + 1):
            expected = line[column * cell : (column + 1) * cell].max(axis=0)
            assert window.planes[TOP][:, column].tolist() == expected.tolist(), (cell, column)
        alone = _window(
            store,
            reader,
            first=0,
            last=2999,
            cell=cell,
            wanted={TOP},
            layers=ALL,
            line=[Stretch(attempt=1, first=0, last=2999)],
        )
        assert alone.planes[TOP].max() == np.float32(1e9)
        cell *= 2


def _tiles(store: Store, change: Callable[[Session], object]) -> None:
    """Change tiles as somebody else would, and say so by a new epoch."""

    def run(session: Session) -> None:
        change(session)
        for state in session.exec(select(StreamState)).all():
            state.epoch += 1

    store.write(run)


def test_what_was_dropped_is_answered_by_the_finest_level_that_is_left(store: Store, pen: MakePen, make: Make) -> None:
    values = np.random.default_rng(2).lognormal(size=(4096, 3))
    _plain(store, pen, make, values)
    seal(store)
    reader = TileReader(16 << 20)
    asked: dict[str, Any] = {"first": 500, "last": 1100, "cell": 1, "wanted": {TOP}, "layers": ALL}
    assert _window(store, reader, **asked).resolution == 1
    # Raw of the steps 512 to 1023.
    _tiles(store, lambda session: session.execute(delete(TileRaw).where(col(TileRaw.idx).in_([2, 3]))))
    window = _window(store, reader, **asked)
    assert window.resolution == 8
    exact = values.astype(np.float32)
    for step in range(500, 1101):
        inside = exact[step : step + 1] if not 512 <= step < 1024 else exact[step // 8 * 8 : step // 8 * 8 + 8]
        assert window.planes[TOP][:, step - 500].tolist() == inside.max(axis=0).tolist()
    assert _window(store, reader, **{**asked, "cell": 8}).resolution == 8
    assert _window(store, reader, **{**asked, "cell": 64}).resolution == 64


def test_a_damaged_tile_is_missing_and_said_so(store: Store, pen: MakePen, make: Make) -> None:
    values = np.random.default_rng(3).lognormal(size=(1024, 3))
    _plain(store, pen, make, values)
    seal(store)

    def damage(session: Session) -> None:
        tile = session.exec(
            select(TileRaw).where(TileRaw.idx == 1, TileRaw.stat == Stat.ABSMAX, TileRaw.agg == Agg.VALUE)
        ).one()
        data = bytearray(tile.data)
        data[60] ^= 1
        tile.data = bytes(data)

    store.write(damage)
    reader = TileReader(16 << 20)
    for _ in range(2):
        window = _window(store, reader, first=0, last=1023, cell=1, wanted={TOP}, layers=ALL)
        assert window.damaged == 1
        missing = is_missing(window.planes[TOP])
        assert missing[:, 256:512].all()
        assert not missing[:, :256].any()
        assert not missing[:, 512:].any()
    assert _window(store, reader, first=0, last=1023, cell=8, wanted={TOP}, layers=ALL).damaged == 0


def test_what_was_patched_is_read_anew_and_the_rest_is_not(store: Store, pen: MakePen, make: Make) -> None:
    values = np.random.default_rng(4).lognormal(size=(1024, 3))
    _plain(store, pen, make, values)
    seal(store)
    reader = TileReader(16 << 20)
    asked: dict[str, Any] = {"first": 0, "last": 1023, "cell": 1, "wanted": {TOP}, "layers": ALL}
    _window(store, reader, **asked)
    fetched = reader.tiles.fetched
    assert fetched == 4, "a tile of 256 steps each"
    _window(store, reader, **asked)
    assert reader.tiles.fetched == fetched

    def patch(session: Session) -> None:
        tile = session.exec(
            select(TileRaw).where(TileRaw.idx == 2, TileRaw.stat == Stat.ABSMAX, TileRaw.agg == Agg.VALUE)
        ).one()
        plane = decode(tile.data).values.copy()
        plane[1, 88] = 1e9
        made = encode(plane, first_layer=0, first_column=512)
        assert made is not None
        tile.data = made[1]

    _tiles(store, patch)
    assert _window(store, reader, **asked).planes[TOP][1, 600] == np.float32(1e9)


def test_a_window_reads_the_blocks_and_the_level_it_needs(store: Store, pen: MakePen, make: Make) -> None:
    values = np.random.default_rng(5).lognormal(size=(2048, 130))
    _plain(store, pen, make, values)
    seal(store)
    for layers, cell, rows in (([3], 8, 1), ([3, 70], 8, 2), ([129], 1, 8), (range(130), 64, 3)):
        reader = TileReader(16 << 20)
        window = _window(store, reader, first=0, last=2047, cell=cell, wanted={TOP}, layers=list(layers))
        assert reader.tiles.fetched == rows, (layers, cell)
        expected = values.astype(np.float32)[:, list(layers)].reshape(-1, cell, len(layers)).max(axis=1).T
        assert window.planes[TOP].tolist() == expected.tolist()


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_tail_is_read_frame_by_frame_once(store: Store, pen: MakePen, make: Make, ranks: int) -> None:
    rng = np.random.default_rng(6)
    pens = [
        pen(store, rank=rank, world=ranks, layers=[make.layer(i, f"l{i}") for i in range(3)]) for rank in range(ranks)
    ]
    values = rng.lognormal(size=(ranks, 300, 3))
    reader = TileReader(16 << 20)
    for step in range(60):
        for rank, one in enumerate(pens):
            part = make.summaries("grad", step, values[rank, step : step + 1])
            one.deliver(wire.Body(summaries=(msgspec.structs.replace(part, placement="shard" if ranks > 1 else ""),)))
        if step in (0, 30, 31, 59):
            window = _window(store, reader, first=0, last=step, cell=1, wanted={TOP}, layers=ALL)
            assert window.planes[TOP].tolist() == values[:, : step + 1].astype(np.float32).max(axis=0).T.tolist()
    # A step that comes again stands as it came last.
    for one in pens:
        again = make.summaries("grad", 7, [[0.5, 0.5, 0.5]])
        one.deliver(wire.Body(summaries=(msgspec.structs.replace(again, placement="shard" if ranks > 1 else ""),)))
    window = _window(store, reader, first=0, last=59, cell=1, wanted={TOP}, layers=ALL)
    assert window.planes[TOP][:, 7].tolist() == [0.5] * 3
