"""What a report tells of a run, asked of its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope._client._results import HeatMap, Histogram, Series
from floatscope_server.export.source import Source

__all__ = ["Facts", "Find", "LayerFacts", "gather"]

COLUMNS = 480
POINTS = 600
SCALARS = ("loss", "grad_norm", "loss_scale", "lr")
_KINDS = ("act_in", "weight", "act", "act_grad", "grad", "update")
"""In the order in which trouble travels through a step."""
_LOOKED_AT = 3
"""Columns of a heat map that are read again step by step, from the first in which something was over or not finite."""
_WIDEST = 4096
"""Steps of a column that is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """Something in steps ``first`` to ``last`` of a layer; ``bits`` of headroom, NaN where that says nothing."""

    kind: str
    layer: str
    format: str | None
    first: int
    last: int
    bits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """Of one kind of a layer: the least finite headroom and where, the newest, the first steps that were not finite."""

    worst: Find
    newest: float
    nonfinite: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``run`` as the HTTP interface has it. ``layers`` from the least headroom on; ``over`` and ``nonfinite`` are the
    first of their kind in the steps."""

    run: dict[str, Any]
    scalars: dict[str, Series]
    maps: list[HeatMap]
    layers: list[LayerFacts]
    over: Find | None
    nonfinite: Find | None
    underflow: dict[tuple[str, str], float]
    histogram: Histogram | None
    magnitudes: tuple[Series, Series] | None

    @property
    def span(self) -> tuple[int, int]:
        """First and last step of everything that is drawn."""
        drawn: list[Series | HeatMap] = [*self.scalars.values(), *self.maps]
        edges = [(int(one.steps[0]), int(one.steps[-1]) + one.cell - 1) for one in drawn if one.steps.size]
        return (min(first for first, _ in edges), max(last for _, last in edges)) if edges else (0, 0)


def gather(source: Source, name: str) -> Facts:
    """Everything about the run ``name``; ``source`` says what is raised where there is no such run."""
    run = source.run(name)
    found = source.scalars(name, SCALARS, points=POINTS)
    maps = [
        heat
        for kind in _KINDS
        if kind in run["coverage"]["observed"]
        and (heat := source.heatmap(name, kind=kind, metric="headroom", columns=COLUMNS)).values.size
        and not heat.missing.all()
    ]
    layers: list[LayerFacts] = []
    over: list[tuple[int, int, Find]] = []
    broken: list[tuple[int, int, Find]] = []
    for order, heat in enumerate(maps):
        closer = list(_closer(source, name, heat))
        layers += _layers(heat, closer)
        over += [(found.first, order, found) for found in _first(closer, lambda x: (x < 0) & np.isfinite(x))]
        broken += [(found.first, order, found) for found in _first(closer, lambda x: x == -np.inf)]
    layers.sort(key=lambda one: one.worst.bits)
    worst = layers[0].worst if layers else None
    if worst is not None:
        layers[0] = _exactly(source, name, layers[0])
    return Facts(
        run=run,
        scalars={key: found[key] for key in SCALARS if key in found},
        maps=maps,
        layers=layers,
        over=min(over, key=lambda one: one[:2])[2] if over else None,
        nonfinite=min(broken, key=lambda one: one[:2])[2] if broken else None,
        underflow=_underflow(source, name, layers),
        histogram=None if worst is None else source.histogram(name, worst.layer, kind=worst.kind, columns=200),
        magnitudes=None
        if worst is None
        else (_row(source, name, worst, "headroom"), _row(source, name, worst, "absmax")),
    )


def _closer(source: Source, name: str, heat: HeatMap) -> Iterator[HeatMap]:
    """The first columns with something over or not finite, step by step where the steps are still kept."""
    wrong = np.flatnonzero(((heat.values < 0) & ~heat.missing).any(axis=0))[:_LOOKED_AT]
    for column in wrong.tolist():
        first = int(heat.steps[column])
        if heat.cell == 1 or heat.cell > _WIDEST:
            rows = slice(column, column + 1)
            yield HeatMap(
                kind=heat.kind,
                metric=heat.metric,
                format=heat.format,
                unit=heat.unit,
                cell=heat.cell,
                resolution=heat.resolution,
                steps=heat.steps[rows],
                layers=heat.layers,
                formats=heat.formats,
                values=heat.values[:, rows],
                missing=heat.missing[:, rows],
            )
        else:
            last = first + heat.cell - 1
            yield source.heatmap(name, kind=heat.kind, metric="headroom", first=first, last=last, columns=heat.cell)


def _first(maps: list[HeatMap], wrong: Any) -> Iterator[Find]:  # noqa: ANN401 - a predicate over arrays
    for heat in maps:
        with np.errstate(invalid="ignore"):
            cells = wrong(heat.values) & ~heat.missing
        if cells.any():
            column = int(np.flatnonzero(cells.any(axis=0))[0])
            yield _find(heat, int(np.flatnonzero(cells[:, column])[0]), column)
            return


def _find(heat: HeatMap, row: int, column: int) -> Find:
    first = int(heat.steps[column])
    wide = max(heat.cell, heat.resolution)
    return Find(
        kind=heat.kind,
        layer=heat.layers[row],
        format=heat.formats[row],
        first=first,
        last=first + wide - 1,
        bits=float(heat.values[row, column]),
    )


def _finite(heat: HeatMap) -> npt.NDArray[np.float64]:
    return np.where(heat.missing | ~np.isfinite(heat.values), np.inf, heat.values).astype(np.float64)


def _layers(heat: HeatMap, closer: list[HeatMap]) -> Iterator[LayerFacts]:
    """A column that is not finite in one of its steps hides what the others were: those read again count too."""
    finite, seen = _finite(heat), ~heat.missing
    fine = [(each, _finite(each), {layer: row for row, layer in enumerate(each.layers)}) for each in closer]
    for row, layer in enumerate(heat.layers):
        column = int(finite[row].argmin())
        best = _find(heat, row, column)
        for each, values, rows in fine:
            if layer in rows and values[rows[layer]].min() < finite[row, column]:
                best = min(best, _find(each, rows[layer], int(values[rows[layer]].argmin())), key=_bits)
        if not np.isfinite(_bits(best)):
            continue
        broken = np.flatnonzero(seen[row] & (heat.values[row] == -np.inf))
        last = np.flatnonzero(seen[row])[-1]
        yield LayerFacts(
            worst=best,
            newest=float(heat.values[row, last]),
            nonfinite=int(heat.steps[broken[0]]) if broken.size else None,
        )


def _bits(found: Find) -> float:
    return found.bits if np.isfinite(found.bits) else np.inf


def _exactly(source: Source, name: str, facts: LayerFacts) -> LayerFacts:
    """The step of the least headroom, where single steps are still kept."""
    worst = facts.worst
    if worst.first == worst.last or worst.last - worst.first >= _WIDEST:
        return facts
    heat = source.heatmap(
        name,
        kind=worst.kind,
        metric="headroom",
        first=worst.first,
        last=worst.last,
        columns=worst.last - worst.first + 1,
        layers=[worst.layer],
    )
    values = _finite(heat)
    if not np.isfinite(values).any():
        return facts
    return LayerFacts(worst=_find(heat, 0, int(values[0].argmin())), newest=facts.newest, nonfinite=facts.nonfinite)


def _underflow(source: Source, name: str, layers: list[LayerFacts]) -> dict[tuple[str, str], float]:
    """The largest share that rounded to zero, of those layers that a table lists; by kind and layer."""
    found: dict[tuple[str, str], float] = {}
    for kind in dict.fromkeys(one.worst.kind for one in layers[:24]):
        names = [one.worst.layer for one in layers[:24] if one.worst.kind == kind]
        heat = source.heatmap(name, kind=kind, metric="underflow", columns=1, layers=names)
        for layer, values, missing in zip(heat.layers, heat.values, heat.missing, strict=True):
            if (~missing).any():
                found[kind, layer] = float(values[~missing].max())
    return found


def _row(source: Source, name: str, worst: Find, metric: str) -> Series:
    heat = source.heatmap(name, kind=worst.kind, metric=metric, columns=COLUMNS, layers=[worst.layer])
    values = heat.values[0].astype(np.float64) if len(heat.values) else np.empty(0)
    known = ~heat.missing[0] if len(heat.values) else np.empty(0, np.bool_)
    values = values[known]
    return Series(
        name=metric,
        cell=heat.cell,
        n=len(values),
        steps=heat.steps[known] if len(heat.values) else np.empty(0, np.int64),
        values=values,
        min=values,
        max=values,
    )
