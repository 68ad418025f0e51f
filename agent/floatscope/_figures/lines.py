"""Lines over steps: scalars of a run, scalars of several runs, metrics of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from floatscope._figures.marks import Spec, alert_marks, axis_of, in_figure, markers, of_chart

__all__ = ["Line", "compare_figure", "layer_figure", "scalar_figure"]

F64 = npt.NDArray[np.float64]

_TRACE = "#0b6a5d"
_COLOURS = ("#0b6a5d", "#c25a00", "#4458c4", "#a3286c", "#6b7a00", "#0083a8", "#7a4b2a", "#555f66")
"""Of up to 8 runs, told apart by those who see no red and green too."""
_DASHES = ("solid", "dash", "dot", "dashdot")
_GAP = 0.07


class Line(Protocol):
    """Points over steps, as ``Series`` of the client has them: each is a cell of ``cell`` steps with its mean in
    ``values`` and its extremes (float64, as long as ``steps``)."""

    @property
    def cell(self) -> int: ...
    @property
    def steps(self) -> npt.NDArray[np.int64]: ...
    @property
    def values(self) -> F64: ...
    @property
    def min(self) -> F64: ...
    @property
    def max(self) -> F64: ...


def scalar_figure(
    title: str,
    found: Mapping[str, Line],
    *,
    alerts: Sequence[Mapping[str, Any]] = (),
    skipped: Sequence[int] = (),
    language: str = "en",
) -> Spec:
    """A chart below the other for each scalar, on one axis of steps: mean and envelope, alerts that are about it, steps
    that the scaler skipped, and where it was not finite."""
    names = list(found)
    figure = _stacked(title, names, [axis_of(name) for name in names])
    for place, (name, line) in enumerate(found.items()):
        axis = _axis(place)
        figure["data"] += _traces(name, line, axis, log=axis_of(name) == "log")
        sound = np.isfinite(line.values) & np.isfinite(line.min) & np.isfinite(line.max)
        figure["data"] += _nonfinite(line, axis, ~sound)
        if name in ("grad_norm", "loss_scale") and len(skipped) and line.steps.size:
            within = _within(np.array(skipped, np.int64), line)
            if within.size:
                figure["data"].append(markers(within, "skipped", "skipped", axis, _level(line, within.size)))
        _add_alerts(figure, of_chart(name, alerts), axis, language)
    return _named_once(figure)


def layer_figure(
    title: str,
    found: Mapping[str, Line],
    *,
    units: Mapping[str, str],
    alerts: Sequence[Mapping[str, Any]] = (),
    language: str = "en",
) -> Spec:
    """Metrics of a layer, one chart below the other. Headroom has its limit as a line at 0 bits."""
    names = list(found)
    logs = ["log" if name in ("absmax", "absmin", "rms") else "linear" for name in names]
    titles = [f"{name}, {units[name]}" if units.get(name) else name for name in names]
    figure = _stacked(title, titles, logs)
    for place, (name, line) in enumerate(found.items()):
        axis = _axis(place)
        figure["data"] += _traces(name, line, axis, log=logs[place] == "log")
        if name == "headroom":
            # A NaN was not observed; of what was, no headroom at all is left where something was not finite.
            figure["data"] += _nonfinite(line, axis, line.min == -np.inf)
            limit = {"type": "line", "name": "limit", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "xref": "paper", "yref": axis}
            figure["layout"]["shapes"].append({**limit, "line": {"color": "#b3301a", "width": 1.6}})
    if names:
        _add_alerts(figure, alerts, "y", language)
    return _named_once(figure)


def compare_figure(title: str, found: Mapping[str, Mapping[str, Line]]) -> Spec:
    """``found``: for each run its scalars by name. One chart for each scalar, in it a line for each run."""
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    figure = _stacked(title, names, [axis_of(name) for name in names])
    for place, name in enumerate(names):
        for at, (run, lines) in enumerate(found.items()):
            if name not in lines:
                continue
            of_run = _traces(name, lines[name], _axis(place), log=axis_of(name) == "log", colour=_COLOURS[at % 8])
            for trace in of_run:
                trace |= {"legendgroup": in_figure(run)}
                if trace["meta"]["role"] == "mean":
                    trace |= {"name": in_figure(run), "showlegend": place == 0}
                    trace["line"]["dash"] = _DASHES[at % len(_DASHES)]
            figure["data"] += of_run
    figure["layout"]["showlegend"] = True
    return figure


def _traces(name: str, line: Line, axis: str, *, log: bool, colour: str = _TRACE) -> list[Spec]:
    middle = line.steps + (line.cell - 1) / 2
    base = {"type": "scatter", "mode": "lines", "yaxis": axis, "showlegend": False}
    traces: list[Spec] = []
    sound = np.isfinite(line.min) & np.isfinite(line.max) & ((line.min > 0) | (not log))
    if line.cell > 1:
        # A gap would close the area across the whole chart, so cells without finite extremes are left out of it.
        band = {**base, "x": middle[sound], "line": {"width": 0}, "hoverinfo": "skip"}
        traces.append({**band, "meta": {"role": "min"}, "name": f"{in_figure(name)}, min", "y": line.min[sound]})
        fill = {"fill": "tonexty", "fillcolor": f"{colour}38"}
        traces.append(
            {**band, **fill, "meta": {"role": "max"}, "name": f"{in_figure(name)}, max", "y": line.max[sound]}
        )
    traces.append(
        {
            **base,
            "meta": {"role": "mean"},
            "name": in_figure(name),
            "x": middle,
            "y": line.values,
            "line": {"color": colour, "width": 1.5, "shape": "hv" if name == "loss_scale" else "linear"},
        }
    )
    return traces


def _nonfinite(line: Line, axis: str, wrong: npt.NDArray[np.bool_]) -> list[Spec]:
    steps = line.steps[wrong]
    return [markers(steps, "not finite", "nonfinite", axis, _level(line, steps.size))] if steps.size else []


def _named_once(figure: Spec) -> Spec:
    """One entry of the legend for signs that several charts have."""
    seen: set[str] = set()
    for trace in figure["data"]:
        if trace["mode"] == "markers":
            trace |= {"legendgroup": trace["name"], "showlegend": trace["name"] not in seen}
            seen.add(trace["name"])
    return figure


def _level(line: Line, count: int) -> F64:
    """Where signs stand: at the highest finite value, ``count`` times."""
    finite = line.max[np.isfinite(line.max)]
    return np.full(count, finite.max() if finite.size else 1.0)


def _within(steps: npt.NDArray[np.int64], line: Line) -> npt.NDArray[np.int64]:
    within: npt.NDArray[np.int64] = steps[(steps >= line.steps[0]) & (steps < line.steps[-1] + line.cell)]
    return within


def _axis(place: int) -> str:
    return f"y{place + 1}" if place else "y"


def _stacked(title: str, names: Sequence[str], kinds: Iterable[str]) -> Spec:
    count = max(1, len(names))
    height = (1 - _GAP * (count - 1)) / count
    layout: Spec = {
        "title": {"text": in_figure(title)},
        "shapes": [],
        "annotations": [],
        "template": "plotly_white",
        "height": 120 + 190 * count,
        "xaxis": {"title": {"text": "step"}, "anchor": _axis(count - 1), "tickformat": ",d"},
    }
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        top = 1 - place * (height + _GAP)
        axis = {
            "domain": [max(0.0, top - height), top],
            "title": {"text": in_figure(name)},
            "type": kind,
            "anchor": "x",
        }
        layout[f"yaxis{place + 1 if place else ''}"] = axis
    return {"data": [], "layout": layout}


def _add_alerts(figure: Spec, alerts: Sequence[Mapping[str, Any]], axis: str, language: str) -> None:
    shapes, annotations = alert_marks(alerts, axis, language=language)
    figure["layout"]["shapes"] += shapes
    figure["layout"]["annotations"] += annotations
