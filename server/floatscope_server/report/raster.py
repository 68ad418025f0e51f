"""Heat maps and histograms over steps: an indexed image for each theme under axes in SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope._client._results import HeatMap
from floatscope._figures.colours import BEYOND, DARK, LIGHT, Palette
from floatscope_server.report.drawing import GUTTER, RIGHT, WIDTH, frame, step_axis
from floatscope_server.report.markup import Markup, join, tag
from floatscope_server.report.numbers import bits
from floatscope_server.report.png import data_url, indexed_png

__all__ = ["heat_map", "histogram", "legend"]

U8 = npt.NDArray[np.uint8]

_RAMP = len(LIGHT.safe)
_HATCH, _MARK, _CROSS, _MISSING = range(2 * _RAMP, 2 * _RAMP + 4)
_TOP = 6
_TALL = 480
"""Height of a heat map of many layers."""
_MOST_LINES = 240
_PIXELS = 1400
"""Width of an image: a screen with two pixels to one of CSS still shows sharp cells."""
_ROOM = 24
"""Characters of a name beside a heat map."""
_PLOT = WIDTH - GUTTER - RIGHT


def _colours(palette: Palette) -> U8:
    single = np.stack([palette.hatch, palette.mark, palette.cross, palette.missing])
    return np.concatenate([palette.safe, palette.over, single])


def _images(pixels: U8, x: float, y: float, width: float, height: float) -> Markup:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    return join(
        *(
            tag(
                "image",
                href=data_url(indexed_png(pixels, _colours(palette))),
                preserveAspectRatio="none",
                class_=f"pixels {theme}",
                **place,
            )
            for theme, palette in (("light", LIGHT), ("dark", DARK))
        )
    )


def _indices(values: npt.NDArray[np.floating], missing: npt.NDArray[np.bool_], calm: float) -> U8:
    """The colour of each cell of headroom: -inf is something that was not finite, +inf is all zero."""
    shown = np.where(np.isfinite(values), values, 0.0)
    safe = np.clip(1 - shown / calm, 0, 1) * (_RAMP - 1)
    over = _RAMP + np.clip(-shown / BEYOND, 0, 1) * (_RAMP - 1)
    found = np.where(shown < 0, over, safe).round().astype(np.uint8)
    found[values == np.inf] = 0
    found[np.isnan(values) | (values == -np.inf)] = _MARK
    found[missing] = _MISSING
    return found


def _patterned(cells: U8, wide: int, tall: int) -> U8:
    """Pixels of cells, each ``wide`` x ``tall``: hatched over the limit, checked or crossed where not finite."""
    pixels = np.repeat(np.repeat(cells, tall, axis=0), wide, axis=1)
    y, x = np.indices(pixels.shape, np.int32)
    over = (pixels >= _RAMP) & (pixels < 2 * _RAMP)
    pixels[over & ((x + y) % 6 < 2)] = _HATCH
    across, down = x % wide - (wide - 1) / 2, y % tall - (tall - 1) / 2
    room = min(wide, tall)
    if room >= 7:
        crossed = (np.abs(np.abs(across) - np.abs(down)) < 1) & (np.abs(across) < 0.34 * room)
    else:
        crossed = (x + y) % 3 == 0
    pixels[(pixels == _MARK) & crossed] = _CROSS
    if tall >= 8:
        pixels[y % tall == tall - 1] = _MISSING
    return pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Rows merged ``each`` to a line, ``height`` pixels high."""

    each: int
    count: int
    height: float

    @classmethod
    def of(cls, rows: int) -> _Lines:
        each = max(1, -(-rows // _MOST_LINES))
        count = -(-rows // each)
        return cls(each=each, count=count, height=min(13.0, _TALL / max(1, count)))


def heat_map(found: HeatMap, span: tuple[int, int], calm: float, *, label: str, step_word: str) -> Markup:
    """The heat map of headroom ``found`` over the steps ``span``, ``calm`` bits being the calm end of its colours."""
    steps, cell, names, values, missing = found.steps, found.cell, found.layers, found.values, found.missing
    lines = _Lines.of(len(values))
    if lines.each > 1:
        starts = np.arange(0, len(values), lines.each)
        values = np.minimum.reduceat(
            np.where(missing, np.inf, np.nan_to_num(values, nan=-np.inf, posinf=np.inf)), starts
        )
        missing = np.logical_and.reduceat(missing, starts)
    wide = max(1, round(_PIXELS / len(steps)))
    pixels = _patterned(_indices(values, missing, calm), wide, max(1, round(1.6 * lines.height)))
    each = _PLOT / (span[1] + 1 - span[0])
    left, right = ((step - span[0]) * each for step in (int(steps[0]), int(steps[-1]) + cell))
    bottom = _TOP + lines.count * lines.height
    return frame(
        bottom + 22,
        label,
        _images(pixels, GUTTER + left, _TOP, right - left, bottom - _TOP),
        tag("rect", x=GUTTER, y=_TOP, width=_PLOT, height=f"{bottom - _TOP:.1f}", class_="frame"),
        _labels(names, lines),
        step_axis(span, bottom, step_word),
    )


def _labels(names: Sequence[str], lines: _Lines) -> Markup:
    """Names where there is room for each, else the blocks they belong to."""
    single = lines.each == 1 and lines.height >= 11
    parts: list[Markup] = []
    last, before = -99.0, ""
    for row, name in enumerate(names):
        shown = name if single else _block(name)
        y = _TOP + row // lines.each * lines.height
        if shown == before:
            continue
        before = shown
        if not single:
            parts.append(tag("line", x1=GUTTER - 5, x2=GUTTER - 1, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="tick"))
        if y - last < 11:
            continue
        last = y
        short = shown if len(shown) <= _ROOM else f"…{shown[1 - _ROOM :]}"
        at = f"{y + (lines.height / 2 + 3.5 if single else 8):.1f}"
        parts.append(tag("text", tag("title", shown), short, x=GUTTER - 8, y=at, class_="axis end"))
    return join(*parts)


def _block(name: str) -> str:
    """The block that a layer belongs to: its name up to the first number."""
    parts = name.split(".")
    number = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
    return name if number is None else ".".join(parts[: number + 1])


def legend(calm: float, *, label: str, limit: str, nonfinite: str, missing: str) -> Markup:
    """The scale: far from the limit on the left, the limit as a line, hatched beyond it."""
    bar, high, left = 360, 12, 12
    values = np.linspace(calm, -BEYOND, bar)
    cells = _indices(values[None, :], np.zeros((1, bar), np.bool_), calm)

    def x_of(value: float) -> float:
        return left + (calm - value) / (calm + BEYOND) * bar

    ticks = [
        tag(
            "text",
            f"{bits(at).removesuffix('.0')}{'+' if at == calm else ''}",
            x=f"{x_of(at):.1f}",
            y=44,
            class_="axis middle",
        )
        for at in (calm, 0.75 * calm, 0.5 * calm, 0.25 * calm, 0.0, -BEYOND)
    ]
    zero = f"{x_of(0):.1f}"
    swatches = np.array([[_MARK], [_MISSING]], np.uint8)
    x = left + bar + 40
    parts = [
        _images(_patterned(cells, 2, 2 * high), left, 18, bar, high),
        *ticks,
        tag("line", x1=zero, x2=zero, y1=12, y2=18 + high + 4, class_="zero"),
        tag("text", limit, x=zero, y=9, class_="axis strong middle"),
    ]
    for at, (index, word) in enumerate(zip(swatches, (nonfinite, missing), strict=True)):
        y = 10 + 18 * at
        parts.append(_images(_patterned(index[None, :], 24, 24), x, y, 12, 12))
        parts.append(tag("rect", x=x, y=y, width=12, height=12, class_="frame"))
        parts.append(tag("text", word, x=x + 18, y=y + 10, class_="axis"))
    return frame(50, label, *parts, width=640)


def histogram(spec: dict[str, Any], span: tuple[int, int], *, label: str, step_word: str) -> Markup:
    """The shares of magnitudes ``spec`` over the steps ``span``, with the lines of the format's range."""
    height, bottom = 240, 240 - 20
    trace, *bands = spec["data"]
    edges = np.asarray(trace["y"])
    known = [np.asarray(band["y"]) for band in bands]
    low = min([edges[0], *(float(y.min()) for y in known[:2])])
    high = max([edges[-1], *(float(y.max()) for y in known)]) + 2
    wide, tall = _PIXELS // 2, 2 * (bottom - _TOP)
    starts = np.asarray(trace["x"])
    at = span[0] + (np.arange(wide) + 0.5) / wide * (span[1] + 1 - span[0])
    column = np.searchsorted(starts, at, side="right") - 1
    bin_of = np.searchsorted(edges, high - (np.arange(tall) + 0.5) / tall * (high - low), side="right") - 1
    inside = (column >= 0) & (column < len(starts) - 1)
    there = (bin_of >= 0) & (bin_of < len(edges) - 1)
    z = np.asarray(trace["z"])[np.clip(bin_of, 0, len(edges) - 2)][:, np.clip(column, 0, len(starts) - 2)]
    pixels = np.where(z > 0, (z * (_RAMP - 1)).round(), _MISSING).astype(np.uint8)
    pixels[~there, :] = _MISSING
    pixels[:, ~inside] = _MISSING

    def y_of(value: float) -> float:
        return float(_TOP + (high - value) / (high - low) * (bottom - _TOP))

    parts = [_images(pixels, GUTTER, _TOP, _PLOT, bottom - _TOP)]
    box = {"x": GUTTER, "y": _TOP, "width": _PLOT, "height": bottom - _TOP}
    parts.append(tag("rect", **box, class_="frame"))
    every = max(1, round((high - low) / 6))
    for power in range(int(np.ceil(low)), int(high) + 1):
        if power % every == 0:
            raised = tag("tspan", f"{power}".replace("-", "−"), dy="-4", class_="raised")
            parts.append(tag("text", "2", raised, x=GUTTER - 8, y=f"{y_of(power) + 4:.1f}", class_="axis end"))
    parts += [_format_line(band, span, y_of(low), y_of) for band in bands]
    return frame(height, label, *parts, step_axis(span, bottom, step_word))


def _format_line(band: dict[str, Any], span: tuple[int, int], lowest: float, y_of: Callable[[float], float]) -> Markup:
    each = _PLOT / (span[1] + 1 - span[0])
    pieces, at = "", 0.0
    for step, value in zip(band["x"].tolist(), np.asarray(band["y"]).tolist(), strict=True):
        x, y = GUTTER + (step - span[0]) * each, min(y_of(value), lowest)
        pieces += f"H{x:.1f}V{y:.1f}" if pieces else f"M{x:.1f} {y:.1f}"
        at = y
    role = band["meta"]["role"]
    line = tag("path", d=f"{pieces}H{WIDTH - RIGHT}", class_=f"limit {role.split()[-1]}")
    name = tag("text", band["name"], x=WIDTH - RIGHT - 5, y=f"{at - 4:.1f}", class_="axis strong end halo")
    return join(line, name if at < lowest else None)
