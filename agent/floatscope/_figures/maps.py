"""Fields over steps: a metric of all layers, the exponents of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope._figures.colours import BEYOND, calm_end, headroom_scale
from floatscope._figures.lines import Line
from floatscope._figures.marks import Spec, alert_marks, in_figure
from floatscope._formats import formats

__all__ = ["Limit", "heat_map_figure", "histogram_figure"]

_SHARES = [[0.0, "#faf9f5"], [0.35, "#9fd0c6"], [0.7, "#2c7a8c"], [1.0, "#162a5c"]]
_MOST_CROSSES = 5000
"""Marks of cells that are not finite; each costs plotly as much as a point of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """``log2`` of the largest magnitude of a tensor that its format holds, from each of ``steps`` (int64) on."""

    steps: npt.NDArray[np.int64]
    log2: npt.NDArray[np.float64]

    @classmethod
    def of(cls, headroom: Line, absmax: Line) -> Limit:
        """From what was observed: headroom is log2(limit / amax), whatever the scale was."""
        with np.errstate(divide="ignore", invalid="ignore"):
            log2 = headroom.min + np.log2(absmax.max)
        known = np.isfinite(log2)
        return cls(steps=headroom.steps[known], log2=log2[known])


def heat_map_figure(
    title: str,
    *,
    metric: str,
    unit: str,
    steps: npt.NDArray[np.int64],
    layers: Sequence[str],
    values: npt.NDArray[np.floating],
    missing: npt.NDArray[np.bool_],
) -> Spec:
    """Layers from top to bottom in execution order; what was not observed stays empty.

    Headroom (bits) has the limit of each layer's format as a line in the scale, at 0; a cross is a cell in which
    something was NaN or infinite.
    """
    names = [in_figure(name) for name in layers]
    shown = np.where(missing, np.nan, values).astype(np.float64)
    trace: Spec = {
        "type": "heatmap",
        "meta": {"role": metric},
        "x": steps,
        "y": names,
        "z": shown,
        "colorscale": "YlOrRd",
        "colorbar": {"title": {"text": f"{metric}, {unit}" if unit else metric}},
        "hovertemplate": "%{y}<br>%{x}: %{z:.4g}<extra></extra>",
    }
    traces = [trace]
    if metric == "headroom":
        calm = calm_end(shown)
        ticks = [-BEYOND, 0.0, *(calm * share / 4 for share in (1, 2, 3, 4))]
        texts = [f"{-BEYOND:g}", "0 = limit", *(f"{tick:g}" for tick in ticks[2:-1]), f"{calm:g}+"]
        trace |= {"zmin": -BEYOND, "zmax": calm, "colorscale": headroom_scale(calm)}
        trace["colorbar"] |= {"tickvals": ticks, "ticktext": texts}
        rows, columns = np.nonzero(~missing & (np.isnan(values) | (values == -np.inf)))
        if rows.size:
            trace["z"] = np.where(shown == -np.inf, -BEYOND, shown)
            some = slice(None, None, -(-rows.size // _MOST_CROSSES))
            cross = {"symbol": "x-thin-open", "color": "#000000", "size": 6}
            where = {"x": steps[columns[some]], "y": [names[row] for row in rows[some]]}
            told = "%{y}<br>%{x}: NaN, Inf<extra></extra>"
            marks = {"type": "scatter", "mode": "markers", "name": "NaN, Inf", "marker": cross, "hovertemplate": told}
            traces.append({**marks, **where, "meta": {"role": "nonfinite"}})
    height = min(1600, 180 + 14 * len(names))
    layout = {"title": {"text": in_figure(title)}, "template": "plotly_white", "height": height}
    axes = {"xaxis": {"title": {"text": "step"}, "tickformat": ",d"}, "yaxis": {"autorange": "reversed"}}
    return {"data": traces, "layout": {**layout, **axes}}


def histogram_figure(
    title: str,
    *,
    first_steps: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    edges: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    format_name: str | None,
    limit: Limit | None,
    alerts: Sequence[dict[str, Any]] = (),
    language: str = "en",
) -> Spec:
    """The share of each magnitude (log2) over steps, and across it the range of a format at the scale of each
    step: its largest number, its smallest normal one, and the magnitude at or below which everything rounds to zero.

    ``counts`` is [columns, bins], ``edges`` [bins + 1]; a column is as wide as ``steps`` says.
    """
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    layout: Spec = {
        "title": {"text": in_figure(title)},
        "template": "plotly_white",
        "shapes": [],
        "annotations": [],
        "xaxis": {"title": {"text": "step"}, "tickformat": ",d"},
        "yaxis": {"title": {"text": "log2 |x|"}},
    }
    trace: Spec = {
        "type": "heatmap",
        "meta": {"role": "shares"},
        "x": np.append(first_steps, first_steps[-1:] + steps[-1:]),
        "y": np.log2(np.where(np.isinf(edges), 2.0**128, edges)),
        # The square root, so that one value in ten thousand is still seen.
        "z": np.sqrt(share).T,
        "colorscale": _SHARES,
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"title": {"text": "share"}, "tickvals": [0, 0.1**0.5, 1], "ticktext": ["0", "10 %", "100 %"]},
        "hovertemplate": "%{x}<br>2^%{y:.1f}<extra></extra>",
    }
    traces = [trace]
    if format_name is not None and limit is not None and limit.steps.size:
        chosen = formats[format_name]
        for word, low, dash in (
            ("max", chosen.max, "solid"),
            ("smallest normal", chosen.min_normal, "dash"),
            ("rounds to zero", chosen.zero_at_or_below, "dot"),
        ):
            line = {"color": "#b3301a", "width": 1.6 if word == "max" else 1.1, "dash": dash, "shape": "hv"}
            y = limit.log2 - (np.log2(chosen.max) - np.log2(low))
            of = {"type": "scatter", "mode": "lines", "meta": {"role": word}, "name": f"{format_name} {word}"}
            traces.append({**of, "x": limit.steps, "y": y, "line": line, "showlegend": True})
    layout["legend"] = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0}
    shapes, annotations = alert_marks(alerts, "y", language=language)
    layout["shapes"] += shapes
    layout["annotations"] += annotations
    return {"data": traces, "layout": layout}
