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
from floatscope_server.query.layertable import RunLayers, run_layers
from floatscope_server.query.line import BadQueryError, Stretch, line_of, span_of
from floatscope_server.query.otherformat import OtherFormat, other_format
from floatscope_server.query.pool import cell_size
from floatscope_server.query.ranks import Reach, reach_of
from floatscope_server.query.ratio import divided, divisors, healthy, require_kind
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["HeatMap", "HeatQuestion", "comparable_cell", "heat_map", "most_columns"]

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
    band: tuple[float, float] | None = None
    """Between which values nothing is wrong, of a metric that has such."""

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
            **({} if self.band is None else {"band": self.band}),
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
        require_kind(self.metric, self.kind)


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
    require_kind(asked.metric, asked.kind, dump=dump is not None)
    how = METRICS[asked.metric]
    table = run_layers(session, run.id)
    limits = table.limits(asked.kind, asked.chosen, how)
    rows = table.rows(asked.kind, asked.chosen, how)
    names = asked.names
    shown = _shown(table, asked)
    line = line_of(session, run.id, asked.attempt)
    source = source_of(session, run.id, f"layer/{asked.kind}")
    span = span_of(line, asked.first, asked.last) if dump is None else dump.span(asked.first, asked.last)
    other = None
    if span is None or (source is None and dump is None):
        cell, starts, shown, resolution, damaged = 1, np.empty(0, np.int64), [], 1, 0
        values = np.empty((0, 0), np.float32)
    else:
        cell = cell or cell_size(*span, max(1, min(asked.columns, _MOST_CELLS // max(1, len(shown)))))
        starts = np.arange(span[0] // cell, span[1] // cell + 1) * cell
        layers = np.sort(np.array([layer.index for layer in shown], np.intp))
        other = None if dump is not None else _other(session, reader, run, asked, line, span, layers)
        if other is not None:
            cell = other.cell(cell)
            starts = np.arange(span[0] // cell, span[1] // cell + 1) * cell
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
        if how.over is not None:
            by = divisors(session, reader, run.id, line, how, first=span[0], last=span[1], cell=cell, layers=layers)
            values = divided(values, by)
        if other is not None and source is not None:
            values = np.array(values)
            values[np.searchsorted(layers, other.layers)] = other.plane(session, reader, source, line, how, cell)
        if names is None:
            of = values if how.over is not None else window.planes[list(wanted)[-1 if how.may_lack else 0]]
            seen: npt.NDArray[np.bool_] = np.any(~is_missing(of), axis=1)
            numbers = set(layers[seen].tolist())
            shown = [layer for layer in shown if layer.index in numbers]
        row_of = np.searchsorted(layers, [layer.index for layer in shown]).astype(np.intp)
        if asked.rows is not None and len(shown) > asked.rows:
            keep = _worst_rows(values[row_of], how, asked.rows)
            shown, row_of = [shown[at] for at in keep], row_of[keep]
        # A matrix of 2000 layers takes 5 MB: mostly it is in order as it is.
        if len(row_of) != len(values) or (np.diff(row_of) != 1).any():
            values = values[row_of]
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
        rows=[_row(rows[layer.index], other) for layer in shown],
        values=values,
        resolution=resolution,
        damaged=damaged,
        reach=reach_of(session, run, asked.attempt),
        band=None if how.over is None else healthy(session, run.id),
    )


def comparable_cell(session: Session, reader: TileReader, run: Run, asked: HeatQuestion, cell: int) -> int:
    """``cell``, or the wider one that ``heat_map`` would use in its place."""
    assert run.id is not None
    line = line_of(session, run.id, asked.attempt)
    span = span_of(line, asked.first, asked.last)
    if span is None:
        return cell
    table = run_layers(session, run.id)
    layers = np.array([layer.index for layer in _shown(table, asked)], np.intp)
    other = _other(session, reader, run, asked, line, span, np.sort(layers))
    return cell if other is None else other.cell(cell)


def _shown(table: RunLayers, asked: HeatQuestion) -> list[wire.Layer]:
    names = None if asked.names is None else set(asked.names)
    return [layer for layer in table.ordered if names is None or names & {layer.name, str(layer.index)}]


def _other(
    session: Session,
    reader: TileReader,
    run: Run,
    asked: HeatQuestion,
    line: list[Stretch],
    span: tuple[int, int],
    layers: npt.NDArray[np.intp],
) -> OtherFormat | None:
    assert run.id is not None
    table, how = run_layers(session, run.id), METRICS[asked.metric]
    return other_format(
        session, reader, run, table, line, kind=asked.kind, chosen=asked.chosen, how=how, span=span, layers=layers
    )


def _row(row: Mapping[str, object], other: OtherFormat | None) -> Mapping[str, object]:
    """What the answer says of a layer; where its numbers are from histograms, the format they are in."""
    if other is None or row["index"] not in other.layers:
        return row
    return {**row, "format": other.chosen, "from_histograms": True}


def _worst_rows(values: npt.NDArray[np.float32], how: Metric, rows: int) -> list[int]:
    sign = 1.0 if how.worst == "min" else -1.0
    worst = np.fmin.reduce(sign * values.astype(np.float64), axis=1)
    return sorted(np.argsort(worst, kind="stable")[:rows].tolist())
