"""What the figures share: alerts and skipped steps on the axis of steps, axes, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Spec", "alert_marks", "axis_of", "in_figure", "markers", "of_chart"]

Spec = dict[str, Any]
"""A figure as plotly's JSON, {"data": traces, "layout": ...}; arrays are numpy's."""

SEVERITY = {"critical": "#b3301a", "warning": "#855800", "info": "#1f5f9e"}
_DASH = {"critical": "solid", "warning": "dash", "info": "dot"}
_MOST_ALERTS = 200
"""Marks in a figure; of more, critical ones come first."""

_KINDS: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss_spike", "loss_divergence", "loss_plateau", "loss_zero", "nonfinite"),
    "grad_norm": ("grad_norm_spike", "grad_norm_frozen", "stale_grad_norm", "clip_saturation", "nonfinite"),
    "loss_scale": ("loss_scale_collapse",),
    "lr": ("lr_frozen",),
}
"""Which alerts are about a scalar."""

_AXES = {"grad_norm": "log", "loss_scale": "log"}


def in_figure(text: str) -> str:
    """``text`` for plotly, which obeys markup in titles, names and what a pointer shows."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis_of(name: str) -> str:
    """ "log" for scalars that are read in factors, else "linear"."""
    return _AXES.get(name, "linear")


def of_chart(name: str, alerts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of ``alerts`` that are about the scalar ``name``."""
    return [alert for alert in alerts if alert["kind"] in _KINDS.get(name, ())]


def alert_marks(
    alerts: Sequence[Mapping[str, Any]], axis: str, *, language: str = "en"
) -> tuple[list[Spec], list[Spec]]:
    """(shapes, annotations): a line at the first step of each alert, its text where a pointer rests on its mark.

    ``axis`` is "y", "y2", ... of the chart that they cross.
    """
    order = ("critical", "warning", "info")
    chosen = sorted(alerts, key=lambda alert: order.index(alert["severity"]))[:_MOST_ALERTS]
    key = "message_zh" if language == "zh" else "message"
    shapes, annotations = [], []
    for alert in chosen:
        colour, at = SEVERITY[alert["severity"]], alert["first_step"]
        shapes.append(
            {
                "type": "line",
                "name": alert["severity"],
                "x0": at,
                "x1": at,
                "y0": 0,
                "y1": 1,
                "yref": f"{axis} domain",
                "xref": "x",
                "line": {"color": colour, "width": 1.2, "dash": _DASH[alert["severity"]]},
            }
        )
        annotations.append(
            {
                "x": at,
                "y": 1,
                "xref": "x",
                "yref": f"{axis} domain",
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"▼{alert['number']}" if "number" in alert else "▼",
                "font": {"color": colour, "size": 9},
                "hovertext": in_figure(f"{alert['severity']} {alert['kind']}: {alert[key]}"),
            }
        )
    return shapes, annotations


def markers(steps: npt.NDArray[np.int64], name: str, role: str, axis: str, y: npt.NDArray[np.float64]) -> Spec:
    """Signs at ``steps`` along a level of a chart; ``role`` is "skipped" or "nonfinite"."""
    nonfinite = role == "nonfinite"
    colour = SEVERITY["critical" if nonfinite else "warning"]
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": {"role": role},
        "name": in_figure(name),
        "x": steps,
        "y": y,
        "yaxis": axis,
        "marker": {"symbol": "x-thin-open" if nonfinite else "triangle-down", "color": colour, "size": 7},
        "hovertemplate": "%{x}<extra>" + in_figure(name).replace("%", "&#37;") + "</extra>",
    }
