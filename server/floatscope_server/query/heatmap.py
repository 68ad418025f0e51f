"""Layers by steps: one metric of one kind, pooled to the columns of a screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session, select

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.jsontext import values_of
from floatscope_server.models import LayerRow, Run
from floatscope_server.operands import has_headroom, operand_of
from floatscope_server.query.fields import AGGREGATES, METRICS, Metric
from floatscope_server.query.line import BadQueryError, line_of, span_of
from floatscope_server.query.pool import cell_size
from floatscope_server.query.ranks import Reach, reach_of
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.store.ledger import layer_of
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["HeatMap", "HeatQuestion", "heat_map", "in_execution_order", "layer_formats", "log2_limits", "run_layers"]

_STEPS = Stat.STEPS, Agg.MAX

_MOST_CELLS = 1 << 22
"""Cells of an answer over all layers of the run, 16 MiB; a run with more layers gets fewer columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """``values`` [layers, columns]; ``columns`` the first step of each; rows in execution order."""

    kind: str
    metric: str
    format: str
    agg: str
    attempt: int | None
    first_step: int | None
    last_step: int | None
    cell: int
    columns: npt.NDArray[np.int64]
    layers: Sequence[wire.Layer]
    formats: Mapping[int, str | None]
    values: npt.NDArray[np.float32]
    resolution: int
    damaged: int
    reach: Reach

    def meta(self) -> dict[str, object]:
        """Everything but the values."""
        return {
            "kind": self.kind,
            "metric": self.metric,
            "format": self.format,
            "agg": self.agg,
            "attempt": self.attempt,
            "unit": METRICS[self.metric].unit,
            "worst": METRICS[self.metric].worst,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "cell": self.cell,
            "resolution": self.resolution,
            "damaged": self.damaged,
            "columns": self.columns.tolist(),
            "layers": [
                {
                    "index": layer.index,
                    "name": layer.name,
                    "format": self.formats[layer.index],
                    "scaling": None if (operand := operand_of(layer, self.kind)) is None else operand.scaling,
                    "order": layer.order,
                }
                for layer in self.layers
            ],
            **self.reach.meta(),
        }

    def content(self) -> dict[str, object]:
        """All of it for JSON."""
        return {**self.meta(), "values": values_of(self.values)}


def run_layers(session: Session, run_id: int) -> dict[int, wire.Layer]:
    """The layers of a run by index."""
    return {row.idx: layer_of(row) for row in session.exec(select(LayerRow).where(LayerRow.run_id == run_id))}


def in_execution_order(layers: Mapping[int, wire.Layer]) -> list[wire.Layer]:
    """Layers by their place in the forward pass; those without one come last."""
    return sorted(layers.values(), key=lambda layer: (layer.order < 0, layer.order, layer.index))


def layer_formats(layers: Sequence[wire.Layer], kind: str, chosen: str, how: Metric) -> dict[int, str | None]:
    """The format that each layer is measured against: the one it meets for ``kind``, or the ``chosen`` one.

    ``BadQueryError`` if ``chosen`` is neither "auto" nor a format.
    """
    if chosen != "auto" and chosen not in formats:
        raise BadQueryError(f"unknown format {chosen[:40]!r}; known are auto, {', '.join(formats)}")
    found: dict[int, str | None] = {}
    for layer in layers:
        operand = operand_of(layer, kind)
        met = None if operand is None else operand.format
        if chosen == "auto":
            found[layer.index] = met
        else:
            # Shares were counted while training, in the format of that moment: another one needs the histograms.
            found[layer.index] = chosen if not how.executed or met == chosen else None
    return found


def log2_limits(layers: Sequence[wire.Layer], kind: str, chosen: str, how: Metric) -> npt.NDArray[np.float64]:
    """log2 of the largest number of each layer's format, by layer index; NaN where there is nothing to measure
    against: no format, or for headroom an operand that fills its own format by construction."""
    limits = np.full(max((layer.index for layer in layers), default=-1) + 1, np.nan)
    found = layer_formats(layers, kind, chosen, how)
    for layer in layers:
        name, operand = found[layer.index], operand_of(layer, kind)
        full = operand is not None and operand.format == name and not has_headroom(operand)
        if name is not None and not (full and not how.executed):
            limits[layer.index] = math.log2(formats[name].max)
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatQuestion:
    """Steps ``first`` to ``last`` of a metric in at most ``columns`` columns.

    ``chosen`` is a format or "auto", ``names`` picks layers by name or index, ``rows`` the worst so many. ``attempt``:
    that one alone, with the steps that a later one replaced. Unknown words: ``BadQueryError``.
    """

    kind: str = "grad"
    metric: str = "headroom"
    chosen: str = "auto"
    agg: str = "worst"
    attempt: int | None = None
    first: int | None = None
    last: int | None = None
    columns: int = 600
    rows: int | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what, word, known in (
            ("kind", self.kind, wire.KINDS),
            ("metric", self.metric, METRICS),
            ("agg", self.agg, AGGREGATES),
        ):
            if word not in known:
                raise BadQueryError(f"unknown {what} {word[:40]!r}; known are {', '.join(known)}")


def heat_map(
    session: Session, reader: TileReader, run: Run, asked: HeatQuestion, *, cell: int | None = None
) -> HeatMap:
    """The heat map of ``run``; ``cell`` instead of the one that fits ``asked.columns``.

    Over the ranks it shows the worst, or what all of them together give where that is something else. Columns are
    whole: the first and the last may reach beyond what was asked for.
    """
    assert run.id is not None
    how = METRICS[asked.metric]
    table = run_layers(session, run.id)
    listed = list(table.values())
    formats_of = layer_formats(listed, asked.kind, asked.chosen, how)
    limits = log2_limits(listed, asked.kind, asked.chosen, how)
    names = None if asked.names is None else set(asked.names)
    shown = [layer for layer in in_execution_order(table) if names is None or names & {layer.name, str(layer.index)}]
    line = line_of(session, run.id, asked.attempt)
    source = source_of(session, run.id, f"layer/{asked.kind}")
    span = span_of(line, asked.first, asked.last)
    if span is None or source is None:
        cell, starts, shown, resolution, damaged = 1, np.empty(0, np.int64), [], 1, 0
        values = np.empty((0, 0), np.float32)
    else:
        cell = cell or cell_size(*span, max(1, min(asked.columns, _MOST_CELLS // max(1, len(shown)))))
        starts = np.arange(span[0] // cell, span[1] // cell + 1) * cell
        layers = np.sort(np.array([layer.index for layer in shown], np.intp))
        wanted = dict.fromkeys(how.wanted(asked.agg))
        if names is None and how.may_lack:
            wanted[_STEPS] = None
        window = reader.window(
            session, source, line, first=span[0], last=span[1], cell=cell, wanted=wanted, layers=layers
        )
        resolution, damaged = window.resolution, window.damaged
        values = how.of(window.planes, asked.agg, limits[layers])
        if names is None:
            of = window.planes[list(wanted)[-1 if how.may_lack else 0]]
            seen: npt.NDArray[np.bool_] = np.any(~is_missing(of), axis=1)
            shown = [layer for layer in shown if seen[np.searchsorted(layers, layer.index)]]
        row_of = np.searchsorted(layers, [layer.index for layer in shown]).astype(np.intp)
        keep = _worst_rows(values[row_of], how, asked.rows)
        shown, values = [shown[at] for at in keep], values[row_of[keep]]
    return HeatMap(
        kind=asked.kind,
        metric=asked.metric,
        format=asked.chosen,
        agg=asked.agg,
        attempt=asked.attempt,
        first_step=span[0] if span else None,
        last_step=span[1] if span else None,
        cell=cell,
        columns=starts,
        layers=shown,
        formats=formats_of,
        values=values,
        resolution=resolution,
        damaged=damaged,
        reach=reach_of(session, run, asked.attempt),
    )


def _worst_rows(values: npt.NDArray[np.float32], how: Metric, rows: int | None) -> list[int]:
    if rows is None or len(values) <= rows:
        return list(range(len(values)))
    sign = 1.0 if how.worst == "min" else -1.0
    worst = np.fmin.reduce(sign * values.astype(np.float64), axis=1)
    return sorted(np.argsort(worst, kind="stable")[:rows].tolist())
