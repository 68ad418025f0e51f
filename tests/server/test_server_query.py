"""What a page asks for, against the same computed one cell at a time."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.blocks import pack
from floatscope_server.frame import Frame
from floatscope_server.jsontext import is_missing, values_of
from floatscope_server.query.fields import AGGREGATES, METRICS, MISSING
from floatscope_server.query.heatmap import HeatMap, HeatQuestion, heat_map
from floatscope_server.query.line import BadQueryError, run_named
from floatscope_server.query.pool import cell_size
from floatscope_server.query.runs import run_list
from floatscope_server.query.series import raw_series, scalar_figures, scalar_series
from floatscope_server.query.show import show
from floatscope_server.query.skipped import skipped_steps
from floatscope_server.query.window import TileReader
from floatscope_server.rules.limits import Limits, judge
from floatscope_server.rules.tensors import Block, LayerTable
from floatscope_server.store import Store
from tests.server.sealing import seal

if TYPE_CHECKING:
    from tests.server.bodies import Unpack
    from tests.server.conftest import Make, MakeAgent, MakePen, Running

pytestmark = pytest.mark.usefixtures("kept")


class Heat(Protocol):
    """The heat map of a run; ``options`` are fields of ``HeatQuestion``."""

    def __call__(self, store: Store, **options: Any) -> HeatMap: ...  # noqa: ANN401


@pytest.fixture(params=["open", "sealed"])
def heat(request: pytest.FixtureRequest) -> Heat:
    """Reads what is in the tail, or in tiles: everything that is there is sealed before it is read first."""
    pending = request.param == "sealed"

    def ask(store: Store, **options: Any) -> HeatMap:  # noqa: ANN401
        nonlocal pending
        if pending:
            seal(store)
            pending = False
        asked = HeatQuestion(**{"metric": "absmax", **options})
        with store.read() as session:
            return heat_map(session, TileReader(1 << 20), run_named(session, "run"), asked)

    return ask


def test_missing_is_kept_apart_from_nan(unpack: Unpack) -> None:
    values = np.array([[1.5, np.nan], [MISSING, -np.inf]], np.float32)
    assert values_of(values) == [[1.5, "NaN"], [None, "-Infinity"]]
    _, arrays = unpack(pack({"a": 1}, {"values": values, "steps": np.arange(3)}))
    assert arrays["values"].view(np.uint32).tolist() == values.view(np.uint32).tolist()
    assert arrays["values"].view(np.uint32)[1, 0] == wire.MISSING_BITS
    assert arrays["steps"].tolist() == [0, 1, 2]


def test_cells_are_powers_of_two_aligned_and_as_fine_as_fits() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        first = int(rng.integers(0, 100_000))
        last = first + int(rng.integers(0, 100_000))
        columns = int(rng.integers(1, 800))
        cell = cell_size(first, last, columns)
        assert cell & (cell - 1) == 0
        assert last // cell - first // cell + 1 <= columns
        if cell > 1:
            half = cell // 2
            assert last // half - first // half + 1 > columns


def _same(a: npt.ArrayLike, b: npt.ArrayLike) -> bool:
    pair = np.array([a, b], np.float32)
    missing = is_missing(pair)
    return bool(missing[0] == missing[1]) and bool(pair[0] == pair[1] or np.isnan(pair).all())


def test_metrics_are_what_their_names_say() -> None:
    top = np.array([[4.0, 0.0, 8.0, 2.0]], np.float32)
    part = {
        "count": [[100, 100, 0, 100]],
        "zeros": [[25, 100, 0, 0]],
        "nans": [[0, 0, 0, 2]],
        "infs": [[0, 0, 0, 3]],
        "absmax": top,
        "absmin": np.array([[0.5, np.inf, 1.0, 1.0]]),
        "sum": [[50.0, 0.0, 0.0, 95.0]],
        "sumsq": [[400.0, 0.0, 0.0, 95.0]],
        "scale": [[16.0, 1.0, 1.0, 1.0]],
        "under": [[0.25, 0.0, 0.5, 0.0]],
        "over_high": [[0.125, 0.0, 0.5, 0.0]],
    }
    dtypes = {"count": np.int64, "zeros": np.int64, "nans": np.int64, "infs": np.int64}
    frame = Frame(
        first_step=0,
        steps=1,
        layers=np.arange(4),
        fields={name: np.asarray(value, dtypes.get(name, np.float64)) for name, value in part.items()},
    )
    limits = np.full(4, math.log2(formats["fp16"].max))
    shown = {name: values_of(metric.plane(frame, limits))[0] for name, metric in METRICS.items()}
    assert shown["headroom"] == [pytest.approx(math.log2(65504 / 64), abs=1e-5), "Infinity", None, "-Infinity"]
    assert shown["absmax"] == [4.0, 0.0, None, 2.0]
    assert shown["absmin"] == [0.5, None, None, 1.0]
    assert shown["rms"] == [2.0, 0.0, None, 1.0]
    assert shown["mean"] == [0.5, 0.0, None, 1.0]
    assert shown["zeros"] == [0.25, 1.0, None, 0.0]
    assert shown["underflow"] == [0.25, 0.0, None, 0.0]
    assert shown["overflow"] == [0.125, 0.0, None, 0.0]
    assert shown["nonfinite"] == [0.0, 0.0, None, 5.0]
    none = np.full(4, np.nan)
    assert values_of(METRICS["headroom"].plane(frame, none))[0] == [None] * 4


def test_a_spike_of_one_step_is_seen_at_every_zoom_and_over_ranks(
    store: Store, pen: MakePen, make: Make, heat: Heat
) -> None:
    rng = np.random.default_rng(2)
    steps, layers = 700, 5
    data = rng.lognormal(size=(2, steps, layers)).astype(np.float32)
    data[1, 333, 3] = 1e9
    for rank in (0, 1):
        one = pen(store, rank=rank, world=2, layers=[make.layer(i, f"l{i}") for i in range(layers)])
        for start in range(0, steps, 50):
            one.deliver(wire.Body(summaries=(make.summaries("grad", start, data[rank, start : start + 50]),)))
    worst = data.max(axis=0)
    for first, last, columns in ((None, None, 600), (None, None, 7), (120, 500, 20), (333, 333, 1), (300, 650, 350)):
        shown = heat(store, first=first, last=last, columns=columns)
        low, high = first or 0, steps - 1 if last is None else last
        assert len(shown.columns) <= columns
        assert shown.columns[0] == low // shown.cell * shown.cell
        for column, start in enumerate(shown.columns.tolist()):
            inside = worst[start : start + shown.cell]  # cells are whole
            assert shown.values[:, column].tolist() == inside.max(axis=0).tolist()
        assert shown.columns[-1] == high // shown.cell * shown.cell
        assert shown.values.max() == np.float32(1e9)


def test_a_later_attempt_wins_from_its_first_step_on(store: Store, pen: MakePen, make: Make, heat: Heat) -> None:
    layers = [make.layer(0, "a")]
    for first, steps, value in ((0, 10, 1.0), (6, 8, 2.0), (4, 3, 3.0)):
        pen(store, layers=layers).deliver(
            wire.Body(
                summaries=(make.summaries("grad", first, np.full((steps, 1), value)),),
                scalars=(make.scalars("loss", first, [value] * steps),),
            )
        )
    expected = [1.0] * 4 + [3.0] * 3
    assert heat(store).values.tolist() == [expected]
    with store.read() as session:
        run = run_named(session, "run")
        (series,) = scalar_series(session, run, names=["loss"], first=None, last=None, points=100)
    assert series.steps.tolist() == list(range(7))
    assert series.values.tolist() == expected


def test_a_step_that_comes_twice_counts_as_it_came_last(store: Store, pen: MakePen, make: Make, heat: Heat) -> None:
    one = pen(store, layers=[make.layer(0, "a")])
    for first, values in ((4, [5.0, 5.0]), (0, [1.0] * 6), (2, [2.0])):
        one.deliver(
            wire.Body(
                summaries=(make.summaries("grad", first, np.array(values)[:, None]),),
                scalars=(make.scalars("loss", first, values),),
            )
        )
    assert heat(store).values.tolist() == [[1.0, 1.0, 2.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize("jump", [10**6, 10**9, 10**12])
def test_a_jump_of_steps_costs_no_memory(store: Store, pen: MakePen, make: Make, jump: int, heat: Heat) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(100)])
    rng = np.random.default_rng(3)
    data = rng.lognormal(size=(3, 4, 100)).astype(np.float32)
    # A later attempt may begin anywhere.
    two = pen(store, attempt=2, layers=one.layers)
    for writer, first, plane in zip((one, one, two), (0, 2, jump), data, strict=True):
        writer.deliver(wire.Body(summaries=(make.summaries("grad", first, plane),)))
    tracemalloc.start()
    shown = heat(store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert len(shown.columns) <= 600
    assert shown.values[:, 0] == pytest.approx(np.concatenate((data[0, :2], data[1])).max(axis=0))
    assert shown.values[:, -1] == pytest.approx(data[2].max(axis=0))
    assert is_missing(shown.values[:, 1:-1]).all()


def test_many_layers_get_fewer_columns(
    store: Store, pen: MakePen, make: Make, monkeypatch: pytest.MonkeyPatch, heat: Heat
) -> None:
    monkeypatch.setattr("floatscope_server.query.heatmap._MOST_CELLS", 1000)
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(100)])
    data = np.random.default_rng(4).lognormal(size=(50, 100)).astype(np.float32)
    for first in range(0, 50, 10):
        one.deliver(wire.Body(summaries=(make.summaries("grad", first, data[first : first + 10]),)))
    shown = heat(store)
    assert (shown.cell, shown.values.shape) == (8, (100, 7))
    for column in range(7):
        assert shown.values[:, column] == pytest.approx(data[8 * column : 8 * column + 8].max(axis=0))


def test_formats_are_the_layers_own_or_the_one_asked_for(store: Store, pen: MakePen, make: Make, heat: Heat) -> None:
    one = pen(
        store,
        layers=[
            make.layer(0, "half", ("grad", "fp16")),
            make.layer(1, "eight", ("grad", "e4m3fn")),
            make.layer(2, "?"),
        ],
    )
    under = np.full((1, 3), 0.25, np.float32)
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[2.0, 2.0, 2.0]], scale=4.0, under=under),)))
    shown = heat(store, metric="headroom")
    assert shown.meta()["layers"] == [
        {"index": 0, "name": "half", "format": "fp16", "scaling": "none", "order": 0},
        {"index": 1, "name": "eight", "format": "e4m3fn", "scaling": "none", "order": 1},
        {"index": 2, "name": "?", "format": None, "scaling": None, "order": 2},
    ]
    bits = [math.log2(65504 / 8), math.log2(448 / 8)]
    assert shown.values[:2, 0].tolist() == pytest.approx(bits, abs=1e-5)
    assert is_missing(shown.values[2:])[0, 0]
    assert heat(store, metric="headroom", chosen="e5m2").values[:, 0].tolist() == pytest.approx(
        [math.log2(57344 / 8)] * 3, abs=1e-5
    )
    assert values_of(heat(store, metric="underflow").values) == [[0.25], [0.25], [None]]
    # Counted in the executed format only: what it would be in another is not made up.
    assert values_of(heat(store, metric="underflow", chosen="fp16").values) == [[0.25], [None], [None]]


def _layer(index: int, name: str, scaling: str) -> wire.Layer:
    operand = wire.Operand(kind="grad", format="fp16", scaling=scaling)
    return wire.Layer(index=index, name=name, module_type="Linear", order=index, operands=(operand,))


def test_a_limit_that_is_reached_by_design_is_no_worst_headroom(
    store: Store, pen: MakePen, make: Make, heat: Heat
) -> None:
    one = pen(store, layers=[_layer(i, name, name) for i, name in enumerate(("loss", "dynamic", "delayed"))])
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[60000.0, 65504.0, 2.0]]),)))
    with store.read() as session:
        (item,) = run_list(session)
    bits = pytest.approx(math.log2(65504 / 2))
    assert item["worst"] == {"headroom": bits, "layer": "delayed", "kind": "grad", "step": 0}
    loss, dynamic, delayed = heat(store, metric="headroom").values[:, 0]
    assert (loss, delayed) == (pytest.approx(math.log2(65504 / 60000), abs=1e-6), bits)
    assert is_missing(np.array([dynamic])).all()
    assert [row["scaling"] for row in heat(store).content()["layers"]] == ["loss", "dynamic", "delayed"]  # type: ignore[attr-defined]
    # Against another format than its own a current scale says something again.
    assert heat(store, metric="headroom", chosen="e5m2").values[1, 0] < 0


@pytest.mark.parametrize("scale", [1.0, 0.0, math.nan, math.inf, 2.0**-20])
@pytest.mark.parametrize("amax", [0.0, 3.0, 65504.0])
def test_rules_and_heat_map_measure_the_same_headroom(
    store: Store, pen: MakePen, make: Make, scale: float, amax: float, heat: Heat
) -> None:
    layers = {0: _layer(0, "a", "delayed")}
    part = make.summaries("grad", 0, [[amax]], scale=scale)
    pen(store, layers=[layers[0]]).deliver(wire.Body(summaries=(part,)))
    shown = heat(store, metric="headroom").values
    rows = Block("grad", Frame.of(part)).rows(0)
    assert rows is not None
    judged = judge(Limits(), LayerTable(layers).operands("grad"), rows, np.zeros(1, np.bool_)).headroom
    # A large magnitude is stored by its float32 logarithm.
    np.testing.assert_allclose(shown[0], judged, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["count", "zeros", "nans", "infs", "absmax"])
def test_a_summary_short_of_a_field_is_left_out_and_breaks_nothing(
    server: Running, agent: MakeAgent, make: Make, name: str
) -> None:
    one = agent(layers=[make.layer(0, "a", ("grad", "fp16"))])
    whole = make.summaries("grad", 0, [[1.0]])
    short = msgspec.structs.replace(whole, fields=tuple(f for f in whole.fields if f.name != name))
    one.deliver(wire.Body(summaries=(short,), events=(wire.Event(step=0, kind="skipped"),)))
    one.deliver(wire.Body(summaries=(make.summaries("grad", 1, [[1.0]]),)))
    assert [gap["reason"] for gap in server.json("/api/v1/runs/run")["gaps"]] == [f"summary without {name}"]
    assert server.json("/api/v1/runs/run/heatmap")["columns"] == [0, 1]


def test_coverage_is_what_the_agent_said_last(store: Store, pen: MakePen) -> None:
    one = pen(store)

    def covered() -> Any:  # noqa: ANN401 - JSON
        with store.read() as session:
            return show(session, TileReader(1 << 20), run_named(session, "run"))["coverage"]

    assert (covered()["trainable"], covered()["reasons"]) == (None, {})
    for step, observed in ((0, 1), (100, 2)):
        detail: dict[str, str | int | float | bool | None] = {
            "trainable": 3,
            "observed": observed,
            "count/frozen": 1,
            "layers/frozen": "head",
        }
        one.deliver(wire.Body(events=(wire.Event(step=step, kind="coverage", detail=detail),)))
    assert covered()["trainable"] == {"observed": 2, "total": 3}
    assert covered()["reasons"] == {"frozen": {"layers": 1, "names": "head"}}


@pytest.mark.parametrize("worst", [math.nan, math.inf, 0.0])
def test_no_metric_is_a_nan_but_that_of_not_observed(
    store: Store, pen: MakePen, make: Make, heat: Heat, worst: float
) -> None:
    one = pen(store, layers=[make.layer(0, "a", ("grad", "fp16"))])
    fields: dict[str, Any] = dict.fromkeys(("absmin", "sum", "sumsq", "scale", "under", "over_high"), worst)
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[worst]], **fields),)))
    for metric, agg in itertools.product(METRICS, AGGREGATES):
        values = heat(store, kind=METRICS[metric].of_kind or "grad", metric=metric, agg=agg).values
        assert (np.isnan(values) == is_missing(values)).all(), (metric, agg)


def test_rows_and_names_pick_layers(store: Store, pen: MakePen, make: Make, heat: Heat) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}", order=4 - i) for i in range(5)])
    one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[3.0, 9.0, 1.0, 7.0, 2.0]]),)))
    assert [layer.name for layer in heat(store).layers] == ["l4", "l3", "l2", "l1", "l0"]
    assert [layer.name for layer in heat(store, rows=2).layers] == ["l3", "l1"]
    assert [layer.name for layer in heat(store, names=("l0", "3")).layers] == ["l3", "l0"]


@pytest.mark.parametrize("bad", [{"kind": "x"}, {"metric": "x"}, {"chosen": "fp7"}])
def test_unknown_words_are_answered_with_the_known_ones(
    store: Store, pen: MakePen, bad: dict[str, str], heat: Heat
) -> None:
    pen(store)
    with pytest.raises(BadQueryError, match="known are"):
        heat(store, **bad)


def test_an_empty_run_has_an_empty_heat_map(store: Store, pen: MakePen, heat: Heat) -> None:
    pen(store)
    shown = heat(store)
    assert shown.content()["values"] == []
    assert shown.first_step is None


def test_the_envelope_of_a_series_holds_every_extreme(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=1000)
    values[500] = 1e6
    values[700] = math.nan
    values[64:128] = -math.inf
    one = pen(store)
    for start in range(0, 1000, 100):
        one.deliver(wire.Body(scalars=(make.scalars("loss", start, values[start : start + 100].tolist()),)))
    with store.read() as session:
        run = run_named(session, "run")
        (series,) = scalar_series(session, run, names=["loss"], first=10, last=989, points=50)
    assert series.n == 980
    assert series.cell == 32
    assert len(series.steps) <= 50
    for at, start in enumerate(series.steps.tolist()):
        inside = values[max(start, 10) : min(start + 32, 990)]
        finite = inside[np.isfinite(inside)]
        np.testing.assert_equal(series.max[at], inside.max())
        np.testing.assert_equal(series.min[at], np.fmin.reduce(inside))
        np.testing.assert_allclose(series.values[at], finite.mean() if len(finite) else inside.max())


def test_figures_of_a_scalar_are_those_of_all_its_points(store: Store, pen: MakePen, make: Make) -> None:
    rng = np.random.default_rng(4)
    first = pen(store, world=2)
    second = pen(store, rank=1, world=2)
    for step in range(0, 40, 4):
        values = rng.normal(size=4)
        values[0] = math.nan if step == 8 else values[0]
        first.deliver(wire.Body(scalars=(make.scalars("loss", step, values.tolist()),)))
        series = (make.scalars("loss", step, [9.0] * 4), make.scalars("mine", step, [math.inf] * 4))
        second.deliver(wire.Body(scalars=series))
    first.deliver(wire.Body(scalars=(make.scalars("late", 30, [1.0, 2.0]), make.scalars("all_nan", 0, [math.nan]))))
    first.deliver(wire.Body(scalars=(make.scalars("late", 20, [3.0, 5.0]),)))
    again = pen(store, world=2)  # goes back to step 10
    again.deliver(wire.Body(scalars=(make.scalars("loss", 10, rng.normal(size=9).tolist()),)))
    with store.read() as session:
        run = run_named(session, "run")
        assert run.id is not None
        shown = scalar_figures(session, run.id)
        points = raw_series(session, run.id, None, 0, 1000)
    expected = {
        name: {
            "n": len(steps),
            "last_step": steps[-1],
            "last": values[-1],
            "min": np.fmin.reduce(values),
            "max": np.fmax.reduce(values),
        }
        for name, (steps, values) in points.items()
        if len(steps)
    }
    assert "loss" in expected
    assert "mine" in expected
    np.testing.assert_equal(shown, expected)


def test_many_skipped_steps_are_looked_up_at_both_ends(store: Store, pen: MakePen, make: Make) -> None:
    # Nothing judges here: each layer is looked up, in one pass over the frames.
    one = pen(store, layers=[make.layer(0, "a"), make.layer(1, "b")])
    steps = 1000
    for start in range(0, 2 * steps, 100):
        nans = np.zeros((100, 2), np.int64)
        nans[::2, 1] = 1
        events = tuple(wire.Event(step=start + at, kind="skipped") for at in range(0, 100, 2))
        one.deliver(wire.Body(summaries=(make.summaries("grad", start, np.ones((100, 2)), nans=nans),), events=events))
    with store.read() as session:
        run_id = run_named(session, "run").id
        assert run_id is not None
        found = skipped_steps(session, TileReader(1 << 20), run_id)
    assert [entry["step"] for entry in found] == list(range(0, 2 * steps, 2))
    assert [entry["layer"] for entry in found] == ["b"] * 200 + [None] * 600 + ["b"] * 200


@pytest.mark.parametrize(
    ("broken", "culprit"),
    [
        ({"act": [2, 1], "act_grad": [0], "grad": [0, 1, 2]}, "l1"),
        ({"act_grad": [0, 1], "grad": [0, 1]}, "l1"),
        # The gradient of the layer's own parameters overflowed while that of its output was still finite.
        ({"act_grad": [0, 1], "grad": [0, 1, 2]}, "l2"),
        ({"grad": [0, 2]}, "l2"),
        ({"act_in": [2], "act": [1]}, "l1"),
        ({}, None),
    ],
)
def test_the_layer_of_a_skipped_step_is_where_it_broke_first(
    store: Store, pen: MakePen, make: Make, broken: dict[str, list[int]], culprit: str | None
) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(3)])
    parts = []
    for kind in ("act_in", "act", "act_grad", "grad"):
        nans = np.zeros((3, 3), np.int64)
        nans[1, broken.get(kind, [])] = 1
        parts.append(make.summaries(kind, 10, np.ones((3, 3)), nans=nans))
    one.deliver(wire.Body(summaries=tuple(parts), events=(wire.Event(step=11, kind="skipped"),)))
    with store.read() as session:
        shown = show(session, TileReader(1 << 20), run_named(session, "run"))
    assert shown["skipped_steps"] == [{"step": 11, "layer": culprit, "rank": 0, "optimizers": [], "scales": []}]


def test_a_step_that_two_scalers_skip_names_both(store: Store, pen: MakePen, make: Make) -> None:
    skipped = [{"optimizer": 1, "scale": 2.0}, {"optimizer": 0, "scale": 65536.0}]
    for rank in (0, 1):
        one = pen(store, writer=f"{rank:032x}", rank=rank, layers=[make.layer(0, "a")])
        events = tuple(wire.Event(step=3, kind="skipped", detail=dict(detail)) for detail in skipped)
        one.deliver(wire.Body(summaries=(make.summaries("grad", 3, np.ones((1, 1))),), events=events))
    with store.read() as session:
        run_id = run_named(session, "run").id
        assert run_id is not None
        [entry] = skipped_steps(session, TileReader(1 << 20), run_id)
    assert (entry["step"], entry["optimizers"], entry["scales"]) == (3, [0, 1], [65536.0, 2.0])


def test_the_cache_changes_nothing_and_stays_bounded(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(4)])
    rng = np.random.default_rng(4)
    for step in range(60):
        one.deliver(wire.Body(summaries=(make.summaries("grad", step, rng.normal(size=(1, 4)) ** 2),)))
    reader = TileReader(20_000)
    asked = HeatQuestion(metric="rms")
    with store.read() as session:
        run = run_named(session, "run")
        first = heat_map(session, reader, run, asked)
        again = heat_map(session, reader, run, asked)
        fresh = heat_map(session, TileReader(0), run, asked)
    assert 0 < reader.nbytes <= 2 * 20_000
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_array_equal(first.values, fresh.values)


def test_checkpoints_that_are_not_listed_are_counted(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "a")])
    saved = tuple(wire.Event(step=step, kind="checkpoint", detail={"path": f"out/{step}"}) for step in range(70))
    one.deliver(wire.Body(events=(*saved, wire.Event(step=69, kind="skipped"))))
    with store.read() as session:
        shown = show(session, TileReader(1 << 20), run_named(session, "run"))
    listed = shown["checkpoints"]
    assert isinstance(listed, list)
    assert [one["step"] for one in listed] == list(range(6, 70))
    assert shown["checkpoints_saved"] == 70
