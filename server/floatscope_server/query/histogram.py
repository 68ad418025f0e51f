"""A layer's exponent histograms over steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.merge import MERGING
from floatscope_server.models import LayerRow, Run
from floatscope_server.query.frames import stored_frames
from floatscope_server.query.line import BadQueryError, Stretch, canonical_line, stream_id
from floatscope_server.query.ranks import Reach, reach_of
from floatscope_server.store.parts import MAX_STEP, MAX_STEPS
from floatscope_server.store.replay import HISTOGRAMS

__all__ = ["UnknownLayerError", "layer_histogram"]

_NOTE = (
    "bin i counts finite non-zero magnitudes in (edge(i), edge(i + 1)]; edge(i) is the float32 with bits i << 22, "
    "that is 2^k and 1.5 * 2^k in turn"
)


class UnknownLayerError(LookupError):
    """The run has no layer of this name."""


def layer_histogram(
    session: Session, run: Run, *, layer: str, kind: str, first: int | None, last: int | None
) -> dict[str, object]:
    """One column for each stretch of steps of which a histogram is stored; ``first`` is the bin of ``counts[0]``.

    A column adds up the ranks where their rows merge, and is ``complete`` when each has reported its own; else it is
    that of the lowest rank. A stretch that ranks have cut differently is one column.
    """
    if kind not in wire.KINDS:
        raise BadQueryError(f"unknown kind {kind!r}; known are {', '.join(wire.KINDS)}")
    assert run.id is not None
    row = session.exec(select(LayerRow).where(LayerRow.run_id == run.id, LayerRow.name == layer)).one_or_none()
    if row is None:
        raise UnknownLayerError(layer)
    columns: list[dict[str, object]] = []
    stream = stream_id(session, run.id, f"hist/{kind}")
    low, high = 0 if first is None else first, MAX_STEP if last is None else last
    for stretch in canonical_line(session, run.id) if stream is not None else []:
        assert stream is not None
        part = Stretch(attempt=stretch.attempt, first=max(stretch.first, low), last=min(stretch.last, high))
        if part.first > part.last:
            continue
        # A step that came twice: the later one stands.
        rows: dict[tuple[int, str, int, int], _Row] = {}
        for stored in stored_frames(session, stream, part, HISTOGRAMS.decode, longest=MAX_STEPS):
            found = _row(stored.content, row.idx, stored.rank)
            if found is not None:
                rows[stored.rank, found.placement, found.copy_of, found.first_step] = found
        reach = reach_of(session, run, stretch.attempt)
        merging = _merging(list(rows.values()))
        ranks = {row.rank for row in merging}
        columns += [_column(cell, reach, ranks) for cell in _cells(merging)]
    firsts = [column["first"] for column in columns if isinstance(column["first"], int) and column["counts"]]
    return {
        "kind": kind,
        "layer": layer,
        "first_bin": min(firsts, default=None),
        "columns": columns,
        "edges_note": _NOTE,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """The histogram of one layer on one rank."""

    rank: int
    placement: str
    copy_of: int
    first_step: int
    steps: int
    first: int
    sampled: int
    counts: npt.NDArray[np.uint64]

    @property
    def end(self) -> int:
        return self.first_step + self.steps


def _row(part: wire.Histograms, layer: int, rank: int) -> _Row | None:
    rows = np.flatnonzero(np.frombuffer(part.layers, "<u4") == layer)
    if not len(rows):
        return None
    at = int(rows[0])
    length = np.frombuffer(part.length, "<u2").astype(np.int64)
    start = int(length[:at].sum())
    return _Row(
        rank=rank,
        placement=part.placement,
        copy_of=rank if part.copy_of < 0 else part.copy_of,
        first_step=part.first_step,
        steps=part.steps,
        first=int(np.frombuffer(part.first, "<u2")[at]),
        sampled=int(np.frombuffer(part.sampled, "<i8")[at]),
        counts=np.frombuffer(part.counts, "<u8")[start : start + int(length[at])],
    )


def _merging(rows: list[_Row]) -> list[_Row]:
    """The rows that count: of copies one, and of what merges with nothing those of the lowest rank."""
    together = [row for row in rows if row.placement in MERGING]
    if not together:
        lowest = min((row.rank for row in rows), default=0)
        return [row for row in rows if row.rank == lowest]
    # The lowest rank that has it, where the one that should count has sent none.
    chosen: dict[tuple[str, int], int] = {}
    for row in together:
        known = chosen.get((row.placement, row.copy_of), row.rank)
        chosen[row.placement, row.copy_of] = row.copy_of if row.copy_of in (known, row.rank) else min(known, row.rank)
    return [row for row in together if chosen[row.placement, row.copy_of] == row.rank]


def _cells(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Rows that share steps, ascending."""
    cell: list[_Row] = []
    end = -1
    for row in sorted(rows, key=lambda row: row.first_step):
        if cell and row.first_step >= end:
            yield cell
            cell, end = [], -1
        cell.append(row)
        end = max(end, row.end)
    if cell:
        yield cell


def _column(cell: list[_Row], reach: Reach, ranks: set[int]) -> dict[str, object]:
    first_step, end = cell[0].first_step, max(row.end for row in cell)
    first = min((row.first for row in cell if len(row.counts)), default=0)
    last = max((row.first + len(row.counts) for row in cell), default=0)
    counts = np.zeros(max(0, last - first), np.uint64)
    for row in cell:
        counts[row.first - first : row.first - first + len(row.counts)] += row.counts
    return {
        "first_step": first_step,
        "steps": end - first_step,
        "first": first,
        "sampled": sum(row.sampled for row in cell),
        "counts": counts.tolist(),
        # A rank may take histograms less often than another.
        "complete": reach.complete(end - 1) and ranks == {row.rank for row in cell},
    }
