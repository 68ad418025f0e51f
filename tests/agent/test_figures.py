"""Figures as plotly's JSON, before plotly has seen them."""

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope._client._results import Series
from floatscope._figures.colours import DARK, LIGHT, headroom_scale
from floatscope._figures.lines import compare_figure, layer_figure, scalar_figure
from floatscope._figures.maps import heat_map_figure


def line(values: list[float], *, cell: int = 1, low: list[float] | None = None) -> Series:
    array = np.array(values)
    least = array if low is None else np.array(low)
    steps = np.arange(len(values), dtype=np.int64) * cell
    return Series(name="x", cell=cell, n=len(values), steps=steps, values=array, min=least, max=array)


def alert(kind: str, step: int, severity: str = "warning", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"kind": kind, "severity": severity, "first_step": step, "message": "m", "message_zh": "文", **more}


def test_alerts_mark_the_scalar_that_they_are_about() -> None:
    found = {"loss": line([1.0, 2.0]), "lr": line([1.0, 1.0])}
    spec = scalar_figure("run", found, alerts=[alert("loss_spike", 1), alert("lr_frozen", 0)], language="zh")
    assert [(shape["yref"], shape["x0"]) for shape in spec["layout"]["shapes"]] == [("y domain", 1), ("y2 domain", 0)]
    assert spec["layout"]["annotations"][0]["hovertext"] == "warning loss_spike: 文"


def test_of_many_alerts_the_critical_ones_are_shown() -> None:
    many = [alert("loss_spike", step) for step in range(500)] + [alert("nonfinite", 9, "critical")]
    shapes = scalar_figure("run", {"loss": line([1.0])}, alerts=many)["layout"]["shapes"]
    assert len(shapes) == 200
    assert shapes[0]["name"] == "critical"


def test_a_cell_of_several_steps_has_its_envelope() -> None:
    spec = scalar_figure("run", {"loss": line([2.0, 3.0], cell=4, low=[1.0, 1.0])})
    low, high, mean = spec["data"]
    assert (low["y"].tolist(), high["fill"], mean["x"].tolist()) == ([1, 1], "tonexty", [1.5, 5.5])


def test_skipped_steps_stand_on_the_gradient_norm_only_where_it_is_shown() -> None:
    spec = scalar_figure("run", {"loss": line([1.0]), "grad_norm": line([1.0, 2.0])}, skipped=[1, 70])
    (marks,) = [trace for trace in spec["data"] if trace["meta"]["role"] == "skipped"]
    assert (marks["x"].tolist(), marks["yaxis"]) == ([1], "y2")


def test_what_was_not_observed_is_no_trouble_of_a_layer() -> None:
    found = {"headroom": line([1.0, float("nan"), -float("inf"), float("inf")])}
    spec = layer_figure("run", found, units={"headroom": "bits"})
    (marks,) = [trace for trace in spec["data"] if trace["meta"]["role"] == "nonfinite"]
    assert marks["x"].tolist() == [2]


def test_markup_in_names_is_no_markup() -> None:
    name = "<b onclick=x>&"
    spec = compare_figure(name, {name: {name: line([1.0])}})
    heat = heat_map_figure(
        name,
        metric="headroom",
        unit="bits",
        steps=np.array([0]),
        layers=[name],
        values=np.array([[-np.inf]], np.float32),
        missing=np.array([[False]]),
    )
    safe = "&lt;b onclick=x&gt;&amp;"
    assert spec["layout"]["title"]["text"] == heat["layout"]["title"]["text"] == safe
    assert spec["data"][0]["name"] == safe
    assert heat["data"][0]["y"] == heat["data"][1]["y"] == [safe]
    assert heat["data"][0]["z"].tolist() == [[-4]]


def test_a_run_without_steps_has_figures() -> None:
    empty = line([])
    assert len(scalar_figure("run", {"loss": empty, "grad_norm": empty}, skipped=[1])["data"]) == 2
    assert scalar_figure("run", {})["data"] == []


def test_ramps_grow_darker_or_brighter_all_the_way() -> None:
    for palette in (LIGHT, DARK):
        luminance = palette.safe.astype(float) @ (0.2126, 0.7152, 0.0722)
        assert (np.diff(luminance) > 0).all() or (np.diff(luminance) < 0).all()
    places = [place for place, _ in headroom_scale(16.0)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1)
