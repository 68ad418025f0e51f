"""Layers by steps: one metric of one kind, pooled to the columns of a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session, func, select

from floatscope import wire
from floatscope_server.jsontext import values_of
from floatscope_server.models import LayerRow, Run
from floatscope_server.query.dump_window import DumpWindow
from floatscope_server.query.fields import AGGREGATES, METRICS, Metric
from floatscope_server.query.layertable import run_layers
from floatscope_server.query.line import BadQueryError, line_of, span_of
from floatscope_server.query.pool import cell_size
from floatscope_server.query.ranks import Reach, reach_of
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["HeatMap", "HeatQuestion", "heat_map", "most_columns"]

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
    rows: Sequence[Mapping[str, object]]
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
            "layers": self.rows,
            **self.reach.meta(),
        }

    def content(self) -> dict[str, object]:
        """All of it for JSON."""
        return {**self.meta(), "values": values_of(self.values)}


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


def most_columns(session: Session, run: Run) -> int:
    """How many columns an answer over all layers of ``run`` may have."""
    layers = session.exec(select(func.count()).where(LayerRow.run_id == run.id)).one()
    return max(1, _MOST_CELLS // max(1, layers))


def heat_map(
    session: Session,
    reader: TileReader,
    run: Run,
    asked: HeatQuestion,
    *,
    cell: int | None = None,
    dump: DumpWindow | None = None,
) -> HeatMap:
    """The heat map of ``run``, or of a ``dump`` of it; ``cell`` instead of the one that fits ``asked.columns``.

    Over the ranks it shows the worst, or what all of them together give where that is something else. Columns are
    whole: the first and the last may reach beyond what was asked for.
    """
    assert run.id is not None
    how = METRICS[asked.metric]
    table = run_layers(session, run.id)
    limits = table.limits(asked.kind, asked.chosen, how)
    rows = table.rows(asked.kind, asked.chosen, how)
    names = None if asked.names is None else set(asked.names)
    shown = [layer for layer in table.ordered if names is None or names & {layer.name, str(layer.index)}]
    line = line_of(session, run.id, asked.attempt)
    source = source_of(session, run.id, f"layer/{asked.kind}")
    span = span_of(line, asked.first, asked.last) if dump is None else dump.span(asked.first, asked.last)
    if span is None or (source is None and dump is None):
        cell, starts, shown, resolution, damaged = 1, np.empty(0, np.int64), [], 1, 0
        values = np.empty((0, 0), np.float32)
    else:
        cell = cell or cell_size(*span, max(1, min(asked.columns, _MOST_CELLS // max(1, len(shown)))))
        starts = np.arange(span[0] // cell, span[1] // cell + 1) * cell
        layers = np.sort(np.array([layer.index for layer in shown], np.intp))
        wanted = dict.fromkeys(how.wanted(asked.agg))
        if names is None and how.may_lack:
            wanted[_STEPS] = None
        if dump is not None:
            window = dump.window(first=span[0], last=span[1], cell=cell, wanted=wanted, layers=layers)
        else:
            assert source is not None
            window = reader.window(
                session, source, line, first=span[0], last=span[1], cell=cell, wanted=wanted, layers=layers
            )
        resolution, damaged = window.resolution, window.damaged
        values = how.of(window.planes, asked.agg, limits[layers])
        if names is None:
            of = window.planes[list(wanted)[-1 if how.may_lack else 0]]
            seen: npt.NDArray[np.bool_] = np.any(~is_missing(of), axis=1)
            numbers = set(layers[seen].tolist())
            shown = [layer for layer in shown if layer.index in numbers]
        row_of = np.searchsorted(layers, [layer.index for layer in shown]).astype(np.intp)
        keep = _worst_rows(values[row_of], how, asked.rows)
        shown, values = [shown[at] for at in keep], values[row_of[keep]]
    return HeatMap(
        kind=asked.kind,
        metric=asked.metric,
        format=asked.chosen,
        agg=asked.agg,
        attempt=asked.attempt if dump is None else dump.attempt,
        first_step=span[0] if span else None,
        last_step=span[1] if span else None,
        cell=cell,
        columns=starts,
        layers=shown,
        rows=[rows[layer.index] for layer in shown],
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
