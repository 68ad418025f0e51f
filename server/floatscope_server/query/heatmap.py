"""Layers by steps: one metric of one kind, pooled to the columns of a screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session, func, select

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.jsontext import values_of
from floatscope_server.merge import merge_ranks
from floatscope_server.models import Attempt, LayerRow, Run
from floatscope_server.operands import has_headroom, operand_of
from floatscope_server.query.fields import METRICS, MISSING, Metric
from floatscope_server.query.frames import FrameCache, stored_steps, summary_frames
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line, stream_id, total_span
from floatscope_server.query.pool import cell_size, merge_worst, pool_steps
from floatscope_server.query.ranks import Reach, reach_of
from floatscope_server.store.ledger import layer_of

__all__ = ["HeatMap", "heat_map", "in_execution_order", "layer_formats", "log2_limits", "run_layers"]

_WINDOW_CELLS = 1 << 21
"""Cells of one rank that are spread out at once: 8 MiB."""

_MERGED_CELLS = 1 << 17
"""Those of all ranks, of which several fields are spread out: about 20 MiB."""

_MOST_CELLS = 1 << 22
"""Cells of an answer over all layers of the run, 16 MiB; a run with more layers gets fewer columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """``values`` [layers, columns]; ``columns`` the first step of each; rows in execution order."""

    kind: str
    metric: str
    format: str
    first_step: int | None
    last_step: int | None
    cell: int
    columns: npt.NDArray[np.int64]
    layers: Sequence[wire.Layer]
    formats: Mapping[int, str | None]
    values: npt.NDArray[np.float32]
    reach: Reach

    def meta(self) -> dict[str, object]:
        """Everything but the values."""
        return {
            "kind": self.kind,
            "metric": self.metric,
            "format": self.format,
            "unit": METRICS[self.metric].unit,
            "worst": METRICS[self.metric].worst,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "cell": self.cell,
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


def heat_map(
    session: Session,
    cache: FrameCache,
    run: Run,
    *,
    kind: str,
    metric: str,
    chosen: str,
    first: int | None,
    last: int | None,
    columns: int,
    rows: int | None,
    names: Sequence[str] | None,
) -> HeatMap:
    """The heat map of steps ``first`` to ``last`` in at most ``columns`` columns.

    Over the ranks it shows the worst, or what all of them together give where that is something else.

    ``names`` picks layers by name or index, ``rows`` the worst so many. Unknown words: ``BadQueryError``.
    """
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    if metric not in METRICS:
        raise BadQueryError(f"unknown metric {metric!r}; known are {', '.join(METRICS)}")
    assert run.id is not None
    how = METRICS[metric]
    table = run_layers(session, run.id)
    formats_of = layer_formats(list(table.values()), kind, chosen, how)
    limits = log2_limits(list(table.values()), kind, chosen, how)
    line = canonical_line(session, run.id)
    stream = stream_id(session, run.id, f"layer/{kind}")
    span = _span(line, first, last)
    if span is None or stream is None:
        values = np.empty((0, 0), np.float32)
        cell, starts, shown = 1, np.empty(0, np.int64), []
    else:
        cell = cell_size(*span, max(1, min(columns, _MOST_CELLS // max(1, len(table)))))
        starts = np.arange(span[0] // cell, span[1] // cell + 1) * cell
        values, seen = _values(
            session, cache, stream, line, span, cell, limits, how, merging=_ranks(session, run.id) > 1
        )
        wanted = None if names is None else set(names)
        shown = [
            layer
            for layer in in_execution_order(table)
            if (seen[layer.index] if wanted is None else wanted & {layer.name, str(layer.index)})
        ]
        shown = _worst_rows(shown, values, how, rows)
        values = values[:, [layer.index for layer in shown]].T
    return HeatMap(
        kind=kind,
        metric=metric,
        format=chosen,
        first_step=span[0] if span else None,
        last_step=span[1] if span else None,
        cell=cell,
        columns=starts,
        layers=shown,
        formats=formats_of,
        values=values,
        reach=reach_of(session, run),
    )


def _ranks(session: Session, run_id: int) -> int:
    """Of the attempt that had the most."""
    return session.exec(select(func.max(Attempt.world)).where(Attempt.run_id == run_id)).one() or 1


def _span(line: list[Stretch], first: int | None, last: int | None) -> tuple[int, int] | None:
    whole = total_span(line)
    if whole is None:
        return None
    start = whole[0] if first is None else max(first, whole[0])
    end = whole[1] if last is None else min(last, whole[1])
    return (start, end) if start <= end else None


def _values(
    session: Session,
    cache: FrameCache,
    stream: int,
    line: list[Stretch],
    span: tuple[int, int],
    cell: int,
    limits: npt.NDArray[np.float64],
    how: Metric,
    *,
    merging: bool,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """[columns, all layers of the run], and which layers were seen in it.

    Memory goes with the answer and with ``_WINDOW_CELLS``, never with the number of steps that are spanned.
    """
    size = len(limits)
    origin = span[0] // cell
    values = np.full((span[1] // cell - origin + 1, size), MISSING, np.float32)
    seen = np.zeros(size, bool)

    def pool(steps: npt.NDArray[np.int64], dense: npt.NDArray[np.float32]) -> None:
        cells, pooled = pool_steps(dense, steps // cell - origin, how.worst)
        values[cells] = merge_worst(values[cells], pooled, how.worst)

    for stretch in line:
        part = Stretch(attempt=stretch.attempt, first=max(stretch.first, span[0]), last=min(stretch.last, span[1]))
        merged = how.merged if merging else ()
        cells = _MERGED_CELLS if merged else _WINDOW_CELLS
        for steps in stored_steps(session, stream, part, most=max(1, cells // max(1, size))):
            window = Stretch(attempt=part.attempt, first=int(steps[0]), last=int(steps[-1]))
            if merged:
                frames = summary_frames(session, cache, stream, window)
                found = merge_ranks(
                    ((s.rank, s.content.between(window.first, window.last)) for s in frames), steps, size, merged
                )
                for frame in found.frames():
                    pool(steps, how.plane(frame, limits))
                seen |= found.seen
                continue
            rank: int | None = None
            dense = np.empty((0, size), np.float32)
            for stored in summary_frames(session, cache, stream, window):
                if stored.rank != rank:
                    if rank is not None:
                        pool(steps, dense)
                    rank, dense = stored.rank, np.full((len(steps), size), MISSING, np.float32)
                frame = stored.content.between(window.first, window.last)
                row = int(np.searchsorted(steps, frame.first_step))
                # A step that came twice: the later one stands.
                dense[row : row + frame.steps, frame.layers] = how.plane(frame, limits[frame.layers])
                seen[frame.layers] = True
            if rank is not None:
                pool(steps, dense)
    return values, seen


def _worst_rows(
    shown: list[wire.Layer], values: npt.NDArray[np.float32], how: Metric, rows: int | None
) -> list[wire.Layer]:
    if rows is None or len(shown) <= rows:
        return shown
    sign = 1.0 if how.worst == "min" else -1.0
    picked = sign * values[:, [layer.index for layer in shown]].astype(np.float64)
    worst = np.fmin.reduce(picked, axis=0)
    keep = set(np.argsort(worst, kind="stable")[:rows].tolist())
    return [layer for position, layer in enumerate(shown) if position in keep]
