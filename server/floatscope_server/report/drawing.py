"""Charts as SVG: of plotly's JSON what our own figures use, one pair of axes, in the colours of the style sheet.

plotly's script would weigh 4.8 MB in every file (1.1 MB in its smallest bundle), and would have to be allowed to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.report.markup import Markup, join, tag
from floatscope_server.report.numbers import count, figure, log_ticks, power, steps_on, ticks

__all__ = ["GUTTER", "RIGHT", "WIDTH", "chart", "frame", "step_axis"]

WIDTH = 960
GUTTER = 168
RIGHT = 14
_TOP = 16
_BOTTOM = 20
_APART = 16
"""Pixels between two numbers of alerts."""

F64 = npt.NDArray[np.float64]


def _x(step: float, span: tuple[int, int]) -> float:
    return GUTTER + (step - span[0]) / (span[1] + 1 - span[0]) * (WIDTH - GUTTER - RIGHT)


def step_axis(span: tuple[int, int], top: float, word: str) -> Markup:
    """Ticks and numbers of steps under a figure that ends at ``top``."""
    parts = [tag("text", word, x=GUTTER - 8, y=f"{top + 15:.0f}", class_="axis end")]
    for step in steps_on(*span):
        if not span[0] <= step <= span[1]:
            continue
        at = f"{_x(step + 0.5, span):.1f}"
        parts.append(tag("line", x1=at, x2=at, y1=f"{top:.1f}", y2=f"{top + 4:.1f}", class_="tick"))
        parts.append(tag("text", count(step), x=at, y=f"{top + 15:.0f}", class_="axis middle"))
    return join(*parts)


def frame(height: float, label: str, *content: object, width: int = WIDTH) -> Markup:
    """An SVG that says what it shows."""
    return tag("svg", *content, viewBox=f"0 0 {width} {height:.0f}", role="img", aria_label=label)


def chart(spec: dict[str, Any], span: tuple[int, int], *, label: str, step_word: str, height: int = 150) -> Markup:
    """The lines and marks of ``spec`` over the steps ``span``; its first axis of values is drawn."""
    axis = spec["layout"]["yaxis"]
    log = axis["type"] == "log"
    lines = [trace for trace in spec["data"] if trace["mode"] == "lines"]
    low, high, scaled = _domain(lines, log=log, limit=any(s["name"] == "limit" for s in spec["layout"]["shapes"]))
    bottom = height - _BOTTOM

    def y_of(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - _TOP)

    parts: list[Markup] = []
    for at in log_ticks(low, high) if log else ticks(low, high, 4):
        y = f"{y_of(at):.1f}"
        parts.append(tag("line", x1=GUTTER, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        number = power(at) if log else figure(at)
        parts.append(tag("text", number, x=GUTTER - 8, y=f"{y_of(at) + 3.5:.1f}", class_="axis end"))
    box = {"x": GUTTER, "y": _TOP, "width": WIDTH - GUTTER - RIGHT, "height": bottom - _TOP}
    parts.append(tag("rect", **box, class_="frame"))
    if scaled:
        parts += _band(lines, span, y_of, log=log)
        parts += [_line(trace, span, y_of, log=log) for trace in lines if trace["meta"]["role"] == "mean"]
    parts += _shapes(spec, span, y_of, bottom)
    parts += [_signs(trace, span) for trace in spec["data"] if trace["mode"] == "markers"]
    return frame(height, label, *parts, step_axis(span, bottom, step_word))


def _scaled(values: F64, *, log: bool) -> F64:
    values = np.asarray(values, np.float64)
    if not log:
        return np.where(np.isfinite(values), values, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values)
    return np.where(np.isfinite(logs), logs, np.nan)


def _domain(lines: list[dict[str, Any]], *, log: bool, limit: bool) -> tuple[float, float, bool]:
    """Lowest and highest value of the axis, and whether any was finite."""
    seen = np.concatenate([_scaled(trace["y"], log=log) for trace in lines]) if lines else np.empty(0)
    seen = seen[~np.isnan(seen)]
    if not seen.size:
        return 0.0, 1.0, False
    low, high = float(seen.min()), float(seen.max())
    if limit:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        # Around a level line at 0.001 an axis of -1 to 1 would show zero.
        room = 0.5 if log else abs(low) or 1.0
        return low - room, high + room, True
    room = 0.04 * (high - low)
    return low - room, high + room, True


def _points(trace: dict[str, Any], span: tuple[int, int], y_of: Callable[[float], float], *, log: bool) -> list[str]:
    """Pieces of a path; a gap ends one."""
    pieces: list[str] = []
    steps = trace["line"].get("shape") == "hv"
    pen, before = "M", 0.0
    for x, value in zip(trace["x"].tolist(), _scaled(trace["y"], log=log).tolist(), strict=True):
        if math.isnan(value):
            pen = "M"
            continue
        at, y = _x(x + 0.5, span), y_of(value)
        if steps and pen == "L" and y != before:
            pieces.append(f"H{at:.1f}")
        pieces.append(f"{pen}{at:.1f} {y:.1f}")
        pen, before = "L", y
    return pieces


def _line(trace: dict[str, Any], span: tuple[int, int], y_of: Callable[[float], float], *, log: bool) -> Markup:
    pieces = _points(trace, span, y_of, log=log)
    # A point between two gaps has no length: a round end makes it a dot.
    return tag("path", d="".join(f"{piece}h0" if piece[0] == "M" else piece for piece in pieces), class_="trace")


def _band(
    lines: list[dict[str, Any]], span: tuple[int, int], y_of: Callable[[float], float], *, log: bool
) -> list[Markup]:
    by_role = {trace["meta"]["role"]: trace for trace in lines}
    if "min" not in by_role or not by_role["min"]["x"].size:
        return []
    there = _points(by_role["max"], span, y_of, log=log)
    back = _points(by_role["min"], span, y_of, log=log)[::-1]
    return [tag("path", d="".join(there) + "".join(f"L{piece[1:]}" for piece in back) + "Z", class_="band")]


def _shapes(spec: dict[str, Any], span: tuple[int, int], y_of: Callable[[float], float], bottom: float) -> list[Markup]:
    parts: list[Markup] = []
    for shape in spec["layout"]["shapes"]:
        if shape["name"] == "limit":
            y = f"{y_of(shape['y0']):.1f}"
            parts.append(tag("line", x1=GUTTER, x2=WIDTH - RIGHT, y1=y, y2=y, class_="limit"))
        elif span[0] <= shape["x0"] <= span[1]:
            at = f"{_x(shape['x0'] + 0.5, span):.1f}"
            parts.append(tag("line", x1=at, x2=at, y1=_TOP, y2=f"{bottom:.1f}", class_=f"mark {shape['name']}"))
    last = -math.inf
    for note in sorted(spec["layout"]["annotations"], key=lambda note: float(note["x"])):
        place = _x(note["x"] + 0.5, span)
        if not span[0] <= note["x"] <= span[1] or place - last < _APART:
            continue
        parts.append(tag("text", note["text"], x=f"{place:.1f}", y=_TOP - 5, class_="axis middle"))
        last = place
    return parts


def _signs(trace: dict[str, Any], span: tuple[int, int]) -> Markup:
    """On the upper edge: triangles where a step was skipped, crosses where a value was not finite."""
    role = trace["meta"]["role"]
    places = sorted({round(_x(x + 0.5, span), 1) for x in trace["x"].tolist() if span[0] <= x <= span[1]})
    form = "m-3 -3l6 6m0 -6l-6 6" if role == "nonfinite" else "m-4 -3h8l-4 6z"
    y = _TOP + (7 if role == "nonfinite" else 18)
    return tag("path", d="".join(f"M{at} {y}{form}" for at in places), class_=role)
