"""The report's pictures: traces, heat maps, the worst layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope._client._results import HeatMap
from floatscope._figures.colours import calm_end
from floatscope._figures.lines import layer_figure, scalar_figure
from floatscope._figures.maps import Limit, histogram_figure
from floatscope_server.report.drawing import chart
from floatscope_server.report.gather import SCALARS, Facts
from floatscope_server.report.markup import Markup, join, tag
from floatscope_server.report.numbers import count, figure
from floatscope_server.report.raster import heat_map, histogram, legend
from floatscope_server.report.tongue import Tongue

__all__ = ["heat_maps", "traces", "worst_layer"]

_HEIGHTS = {"loss": 170, "grad_norm": 150, "loss_scale": 120, "lr": 105}


def traces(facts: Facts, alerts: list[dict[str, Any]], t: Tongue) -> Markup:
    """Loss, gradient norm, loss scale and learning rate on one axis of steps."""
    if not facts.scalars:
        return tag("p", t("charts.none"), class_="muted")
    skipped = [one["step"] for one in facts.run["skipped_steps"]]
    parts: list[Markup] = []
    for name in SCALARS:
        if name not in facts.scalars:
            continue
        about = facts.run["scalars"][name]
        spec = scalar_figure(name, {name: facts.scalars[name]}, alerts=alerts, skipped=skipped, language=t.language)
        title = t(f"series.{name}")
        last = t("charts.last", value=figure(about["last"]))
        extremes = t("charts.range", low=figure(about["min"]), high=figure(about["max"]))
        heading = tag("h3", title, tag("span", last), tag("span", extremes))
        drawn = chart(
            spec, facts.span, label=f"{title}: {last}, {extremes}", step_word=t("step"), height=_HEIGHTS[name]
        )
        parts.append(tag("div", heading, tag("div", drawn, class_="figure")))
    cell = max(series.cell for series in facts.scalars.values())
    key = t("charts.key", cell=count(cell)) if cell > 1 else t("charts.key_single")
    return join(*parts, tag("p", key, class_="note"))


def heat_maps(facts: Facts, t: Tongue) -> Markup:
    """Headroom of every kind of tensor that was observed."""
    if not facts.maps:
        return tag("p", t("heat.none"), class_="muted")
    ends = {found.kind: _calm(found) for found in facts.maps}
    calm = min(ends.values())
    shown = [found for found in facts.maps if ends[found.kind] == calm or (found.values[~found.missing] < 0).any()]
    scale = legend(
        calm, label=t("heat.scale"), limit=t("heat.limit"), nonfinite=t("heat.nonfinite"), missing=t("heat.missing")
    )
    parts = [tag("p", t("heat.scale"), class_="note"), tag("div", scale, class_="figure scale")]
    for found in shown:
        title = t(f"kind.{found.kind}")
        span = facts.span
        label = t("heat.label", layers=len(found.layers), first=count(span[0]), last=count(span[1]), kind=title)
        formats = ", ".join(sorted({name for name in found.formats if name is not None}))
        heading = tag("h3", title, tag("span", formats))
        drawn = heat_map(found, span, calm, label=label, step_word=t("step"))
        parts.append(tag("div", heading, tag("div", drawn, class_="figure")))
    if far := [t(f"kind.{found.kind}") for found in facts.maps if not any(found is one for one in shown)]:
        parts.append(tag("p", t("heat.far", bits=figure(calm), kinds=t("comma").join(far)), class_="note"))
    cell = max(found.cell for found in facts.maps)
    coarse = max(found.resolution for found in facts.maps)
    parts.append(tag("p", t("heat.key", cell=count(cell)), class_="note"))
    if coarse > cell:
        parts.append(tag("p", t("heat.coarse", cell=count(coarse)), class_="note"))
    return join(*parts)


def _calm(found: HeatMap) -> float:
    return calm_end(np.where(found.missing, np.nan, found.values))


def worst_layer(facts: Facts, t: Tongue) -> Markup | None:
    """Headroom of the worst layer over the steps, and its magnitudes under its format's range."""
    if not facts.layers or facts.magnitudes is None:
        return None
    worst = facts.layers[0].worst
    headroom, absmax = facts.magnitudes
    title = t("worst.headroom", layer=worst.layer)
    spec = layer_figure(worst.layer, {"headroom": headroom}, units={"headroom": "bits"})
    drawn = chart(spec, facts.span, label=title, step_word=t("step"), height=130)
    parts = [tag("h3", title, tag("span", t(f"kind.{worst.kind}"))), tag("div", drawn, class_="figure")]
    found = facts.histogram
    if found is not None and found.counts.size and worst.format is not None:
        spec = histogram_figure(
            worst.layer,
            first_steps=found.first_steps,
            steps=found.steps,
            edges=found.edges,
            counts=found.counts,
            format_name=worst.format,
            limit=Limit.of(headroom, absmax),
        )
        title = t("worst.histogram", layer=worst.layer, format=worst.format)
        drawn = histogram(spec, facts.span, label=title, step_word=t("step"))
        parts += [tag("h3", title), tag("div", drawn, class_="figure")]
    return join(tag("h2", t("worst")), *parts)
