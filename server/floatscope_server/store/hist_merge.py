"""One merge of histograms over the ranks of a run: the rows that count, added up where they share steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope import wire
from floatscope_server.merge import MERGING
from floatscope_server.tiles.hist import HistRows
from floatscope_server.tiles.ragged import places, starts_of

__all__ = ["merge_histograms"]

_LAYER_SHIFT = 42
"""Steps end before 2^42 (``store.reach``): layer and step fit into one number, in this order."""

Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Rows:
    """Histograms of single ranks. ``source`` [rows, 6]: placement, original, rank, first step, steps, layer;
    ``figures`` [rows, 3]: first bin, length, sampled."""

    source: Int64
    figures: Int64
    counts: npt.NDArray[np.uint64]

    def take(self, index: Any) -> _Rows:  # noqa: ANN401 - whatever NumPy takes
        figures = self.figures[index]
        return _Rows(
            self.source[index], figures, self.counts[places(starts_of(self.figures[:, 1])[index], figures[:, 1])]
        )


def merge_histograms(
    parts: Iterable[tuple[int, wire.Histograms]], complete_to: int | None, layer: int | None = None
) -> HistRows:
    """``parts`` as (rank, part) in the order of arrival, of ``layer`` or of all.

    Of copies one counts, and of what merges with nothing that of the lowest rank. Stretches that share steps, however
    ranks have cut them, are one row; it is ``complete`` when every rank has reported its steps (``complete_to`` is the
    last that each has) and each rank that has rows of the layer has one in it.
    """
    pieces = list(_pieces(parts, layer))
    if not pieces:
        return HistRows.none()
    rows = _Rows(
        np.concatenate([piece.source for piece in pieces]),
        np.concatenate([piece.figures for piece in pieces]),
        np.concatenate([piece.counts for piece in pieces]),
    )
    rows = _counting(_newest(rows))
    _, _, rank, first_step, steps, of_layer = rows.source.T
    begin, end = (of_layer << _LAYER_SHIFT) + first_step, (of_layer << _LAYER_SHIFT) + first_step + steps
    order = np.lexsort((rank, begin))
    rows, begin, end = rows.take(order), begin[order], end[order]
    reached = np.maximum.accumulate(end)
    cell = np.append(0, np.cumsum(begin[1:] >= reached[:-1]))
    _, _, rank, first_step, steps, of_layer = rows.source.T
    # Several parts of one rank in a cell count once.
    pairs = np.unique(np.stack((cell, rank)), axis=1)[0]
    ranks = np.bincount(pairs, minlength=int(cell[-1]) + 1)
    starts = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    merged = HistRows(
        steps=first_step,
        ahead=np.zeros(len(cell), np.int64),
        span=steps,
        layer=of_layer,
        first=rows.figures[:, 0],
        length=rows.figures[:, 1],
        sampled=rows.figures[:, 2],
        ranks=np.ones(len(cell), np.int64),
        complete=np.ones(len(cell), np.bool_),
        counts=rows.counts,
    ).added(cell)
    layers, place = np.unique(of_layer, return_inverse=True)
    of_each = np.bincount(np.unique(np.stack((place, rank)), axis=1)[0], minlength=len(layers))
    reached_by_all = merged.steps + merged.span - 1 <= (-1 if complete_to is None else complete_to)
    complete = reached_by_all & (ranks == of_each[place[starts]])
    whole = HistRows(
        steps=merged.steps,
        ahead=merged.ahead,
        span=merged.span,
        layer=merged.layer,
        first=merged.first,
        length=merged.length,
        sampled=merged.sampled,
        ranks=ranks,
        complete=complete,
        counts=merged.counts,
    )
    return whole.take(np.lexsort((whole.layer, whole.steps)))


def _pieces(parts: Iterable[tuple[int, wire.Histograms]], layer: int | None) -> Iterator[_Rows]:
    for rank, part in parts:
        layers = np.frombuffer(part.layers, "<u4").astype(np.int64)
        first, length, sampled = (
            np.frombuffer(data, dtype).astype(np.int64)
            for data, dtype in ((part.first, "<u2"), (part.length, "<u2"), (part.sampled, "<i8"))
        )
        source = np.empty((len(layers), 6), np.int64)
        source[:, :5] = (
            wire.PLACEMENTS.index(part.placement),
            rank if part.copy_of < 0 else part.copy_of,
            rank,
            part.first_step,
            part.steps,
        )
        source[:, 5] = layers
        rows = _Rows(source, np.stack((first, length, sampled), axis=1), np.frombuffer(part.counts, "<u8"))
        if layer is None:
            yield rows
        elif (mine := np.flatnonzero(layers == layer)).size:
            yield rows.take(mine)


def _newest(rows: _Rows) -> _Rows:
    """A stretch that came twice: the later one stands. (Of one part and layer the first row.)"""
    key = rows.source[:, [0, 1, 2, 3, 5]]
    order = np.lexsort(key.T)
    apart = (key[order][1:] != key[order][:-1]).any(axis=1)
    return rows if apart.all() else rows.take(np.sort(order[np.append(apart, True)]))


def _counting(rows: _Rows) -> _Rows:
    """The rows that count, by layer."""
    placement, original, rank, _, _, layer = rows.source.T
    merging = np.isin(placement, [wire.PLACEMENTS.index(name) for name in MERGING])
    mixed = np.isin(layer, layer[merging])
    # The lowest rank that has it, where the one that should count has sent none.
    group = np.stack((layer, np.where(merging, placement, -1), np.where(merging, original, -1)), axis=1)
    _, member = np.unique(group, axis=0, return_inverse=True)
    member = member.reshape(-1)
    size = int(member.max()) + 1
    lowest = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(lowest, member, rank)
    itself = merging & (rank == original)
    lowest[member[itself]] = original[itself]
    return rows.take((rank == lowest[member]) & (merging | ~mixed))
