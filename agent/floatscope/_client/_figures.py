"""Pictures of what the client answers, by plotly."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from floatscope._client._results import HeatMap, Series

__all__ = ["heat_map_figure", "scalar_figure"]


def heat_map_figure(run: str, found: HeatMap) -> Any:  # noqa: ANN401 - plotly has no types here
    """Layers from top to bottom in execution order; what was not observed stays empty."""
    plotly = _plotly()
    # Low headroom is bad, high values of the other metrics are.
    scale = "RdYlBu" if found.metric == "headroom" else "YlOrRd"
    trace = plotly.Heatmap(
        x=found.steps,
        y=list(found.layers),
        z=np.where(found.missing, np.nan, found.values),
        colorscale=scale,
        colorbar={"title": {"text": f"{found.metric}, {found.unit}" if found.unit else found.metric}},
    )
    figure = plotly.Figure(trace)
    figure.update_layout(title=f"{run}: {found.metric} of {found.kind}", xaxis_title="step")
    figure.update_yaxes(autorange="reversed")
    return figure


def scalar_figure(run: str, found: Mapping[str, Series]) -> Any:  # noqa: ANN401 - plotly has no types here
    """A line for each scalar; where cells have several steps, also the least and the largest."""
    plotly = _plotly()
    figure = plotly.Figure()
    for name, series in found.items():
        figure.add_trace(plotly.Scatter(x=series.steps, y=series.values, name=name, mode="lines"))
        if series.cell > 1:
            for edge, values in (("min", series.min), ("max", series.max)):
                line = {"width": 0.5, "dash": "dot"}
                figure.add_trace(
                    plotly.Scatter(x=series.steps, y=values, name=f"{name}, {edge}", mode="lines", line=line)
                )
    figure.update_layout(title=run, xaxis_title="step")
    return figure


def _plotly() -> Any:  # noqa: ANN401 - plotly has no types here
    try:
        return import_module("plotly.graph_objects")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("figure() needs plotly; type: pip install plotly", name="plotly") from error
