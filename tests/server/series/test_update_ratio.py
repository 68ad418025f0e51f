"""The update ratio, which is made of two kinds: updates over weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.jsontext import is_missing
from floatscope_server.live_columns import Heat, Told, heat_blocks
from floatscope_server.query.heatmap import HeatMap, HeatQuestion, heat_map
from floatscope_server.query.layers import layer_series
from floatscope_server.query.layertable import RunLayers
from floatscope_server.query.line import BadQueryError, run_named
from floatscope_server.query.window import TileReader
from floatscope_server.store import Store
from tests.server.sealing import seal

if TYPE_CHECKING:
    from tests.server.bodies import Unpack
    from tests.server.conftest import Make, MakePen, Running

pytestmark = pytest.mark.usefixtures("kept")

STEPS, LAYERS, SPIKE = 40, 3, 17


def _rms(top: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of what ``make.summaries`` gives for these magnitudes."""
    return np.sqrt(25.0 * top**2 / 100)


def _train(store: Store, pen: MakePen, make: Make) -> np.ndarray[Any, Any]:
    """Writes a run whose layer 2 has no weight to read; the ratios [layers, steps], NaN where there is none."""
    rng = np.random.default_rng(0)
    updates = 1e-3 * rng.uniform(1, 2, (STEPS, LAYERS)).astype(np.float32)
    updates[SPIKE, 1] = 0.5
    weights = rng.uniform(1, 1.1, (STEPS, 2)).astype(np.float32)
    weights[5, 0] = 0.0
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(LAYERS)])
    one.deliver(
        wire.Body(
            steps=STEPS,
            summaries=(make.summaries("update", 0, updates), make.summaries("weight", 0, weights, layers=[0, 1])),
        )
    )
    known = np.concatenate((weights, np.full((STEPS, 1), np.nan)), axis=1)
    with np.errstate(divide="ignore"):
        ratio = _rms(updates) / _rms(known)
    by_layer: np.ndarray[Any, Any] = np.where(np.isfinite(ratio), ratio, np.nan).T
    return by_layer


def _ask(store: Store, **options: Any) -> HeatMap:  # noqa: ANN401 - of HeatQuestion
    with store.read() as session:
        asked = HeatQuestion(**{"kind": "update", "metric": "ratio", **options})
        return heat_map(session, TileReader(1 << 20), run_named(session, "run"), asked)


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_it_is_the_update_by_the_weight_of_the_same_step(store: Store, pen: MakePen, make: Make, sealed: bool) -> None:
    ratio = _train(store, pen, make)
    if sealed:
        seal(store)
    shown = _ask(store)
    assert [layer.name for layer in shown.layers] == ["l0", "l1"]
    assert shown.cell == 1
    np.testing.assert_allclose(shown.values, ratio[:2], rtol=2.0**-7)
    assert is_missing(shown.values[0, 5])


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_a_cell_of_several_steps_shows_the_largest(store: Store, pen: MakePen, make: Make, sealed: bool) -> None:
    ratio = _train(store, pen, make)
    if sealed:
        seal(store)
    shown = _ask(store, columns=5)
    assert shown.cell == 8
    # The largest update over the mean weight: weights of a cell differ by a tenth here.
    worst = np.nanmax(ratio[1].reshape(-1, 8), axis=1)
    np.testing.assert_allclose(shown.values[1], worst, rtol=0.12)
    assert shown.values[1].argmax() == SPIKE // 8


def test_the_series_of_a_layer_is_the_same_number(store: Store, pen: MakePen, make: Make) -> None:
    ratio = _train(store, pen, make)
    with store.read() as session:
        found = layer_series(
            session,
            TileReader(1 << 20),
            run_named(session, "run"),
            layer="l1",
            kind="update",
            metrics=["ratio"],
            chosen="auto",
            attempt=None,
            first=None,
            last=None,
            points=1000,
        )
    for of in ("values", "min", "max"):
        np.testing.assert_allclose(found.arrays[f"ratio/{of}"].astype(float), ratio[1], rtol=1e-6)


def test_the_band_is_that_of_the_rule(store: Store, pen: MakePen, make: Make) -> None:
    _train(store, pen, make)
    assert _ask(store).meta()["band"] == (1e-7, 1e-1)
    assert "band" not in _ask(store, metric="rms").meta()


def test_no_other_kind_has_it(store: Store, pen: MakePen) -> None:
    pen(store)
    with pytest.raises(BadQueryError, match="ratio is update over weight: ask for it with kind update"):
        _ask(store, kind="grad")


def test_live_columns_are_the_same_number(make: Make, unpack: Unpack) -> None:
    updates, weights = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0], [20.0]])
    layers = RunLayers({i: make.layer(i, f"l{i}") for i in range(2)}, digest="")
    told: list[Told] = [
        (make.summaries("update", 6, updates), layers),
        (make.summaries("weight", 5, weights, layers=[1]), layers),
        (make.summaries("grad", 6, updates), layers),
    ]
    (block,) = heat_blocks("run", Heat(kind="update", metric="ratio", format="auto"), told)
    meta, arrays = unpack(block)
    assert (meta["first_step"], meta["layers"]) == (6, [0, 1])
    values = arrays["values"]
    assert values[0, 1] == pytest.approx(0.1)
    assert is_missing(values)[[0, 1, 1], [0, 0, 1]].all()


def test_an_answer_is_another_one_when_weights_or_rules_are(server: Running, make: Make, agent: Any) -> None:  # noqa: ANN401 - MakeAgent
    one = agent(layers=[make.layer(0, "a")])
    one.deliver(wire.Body(summaries=(make.summaries("update", 0, [[1.0]]),)))
    path = "/api/v1/runs/run/heatmap?kind=update&metric=ratio"
    first = server.get(path)
    one.deliver(wire.Body(summaries=(make.summaries("weight", 0, [[2.0]]),)))
    second = server.get(path)
    assert second.headers["etag"] != first.headers["etag"]
    assert second.json["values"] == [[0.5]]
    assert server.get(path, **{"If-None-Match": second.headers["etag"]}).status == 304
    assert server.get("/api/v1/runs/run/latest?kind=update&metrics=ratio").status == 422
