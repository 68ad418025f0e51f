"""Shares of any format at any scale, from stored histograms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope._summary import SparseHistograms, sparse_shares
from floatscope_server.models import Run
from floatscope_server.query.fields import MISSING
from floatscope_server.query.histpiece import HistPiece
from floatscope_server.query.histtails import HistTails
from floatscope_server.query.line import Stretch, stream_id
from floatscope_server.store.shapes import HISTOGRAM_BLOCK
from floatscope_server.tiles.hist import HistRows

__all__ = ["SharePlanes", "affordable_cell", "clipped", "share_pieces", "share_planes"]

Plane = npt.NDArray[np.float32]


_MOST_ROWS = 1 << 17
"""Histograms, or sums of some, that an answer is made of: about half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlanes:
    """[cells, layers] each, "not observed" where no histogram was taken: of the finite non-zero elements, what rounds
    to zero, lies above the maximum (at least, at most), and lands on one of the three smallest magnitudes."""

    under: Plane
    over_low: Plane
    over_high: Plane
    floor: Plane


def share_pieces(
    session: Session, tails: HistTails, run: Run, kind: str, line: Sequence[Stretch], layers: Collection[int]
) -> list[HistPiece]:
    """What there is of the histograms of ``layers`` along ``line``."""
    assert run.id is not None
    stream = stream_id(session, run.id, f"hist/{kind}")
    if stream is None or not layers:
        return []
    return [HistPiece.of(session, tails, run, stream, stretch, layers) for stretch in line]


def affordable_cell(pieces: Sequence[HistPiece], first: int, last: int, cell: int) -> int:
    """``cell`` or the next power of two of steps at which an answer about steps ``first`` to ``last`` is made of few
    enough rows, or of as few as can be."""
    best, least, tried = cell, _cost(pieces, first, last, cell), cell
    while least > _MOST_ROWS and tried <= last - first:
        tried *= 2
        cost = _cost(pieces, first, last, tried)
        if cost < least:
            best, least = tried, cost
    return best


def _cost(pieces: Sequence[HistPiece], first: int, last: int, cell: int) -> int:
    return sum(piece.cost(cell) for piece in clipped(pieces, first, last, cell))


def clipped(pieces: Sequence[HistPiece], first: int, last: int, cell: int) -> list[HistPiece]:
    """What ``pieces`` have in the cells from that of step ``first`` to that of ``last``."""
    low, high = first // cell * cell, (last // cell + 1) * cell - 1
    cut = [replace(piece, first=max(piece.first, low), last=min(piece.last, high)) for piece in pieces]
    return [piece for piece in cut if piece.first <= piece.last]


def share_planes(
    pieces: Sequence[HistPiece],
    *,
    first: int,
    cell: int,
    formats: Mapping[int, str | None],
    scale: npt.NDArray[np.float64],
) -> SharePlanes:
    """The shares in ``formats`` (by layer; None leaves it out) of ``pieces`` in cells of ``cell`` steps, a power of
    two, the first of which begins at ``first // cell * cell``.

    ``scale`` [cells, layers] is the factor at the cast, NaN where it is not known. A cell holds the shares of all
    elements of its histograms together, not of its worst step. ``KeyError`` for an unknown format.
    """
    cells, size = scale.shape
    sums = np.zeros((len(_NAMES) + 1, cells * size))
    asked = np.array(sorted(layer for layer, name in formats.items() if name is not None and layer < size), np.int64)
    for piece in pieces:
        for block in np.unique(piece.layers // HISTOGRAM_BLOCK).tolist():
            # One block after the other: all at once would be a gigabyte for 300 layers and 600 cells.
            rows = piece.records(cell, block)
            _add(sums, rows.take(np.flatnonzero(np.isin(rows.layer, asked))), first // cell, cell, formats, scale)
    *parts_of, total = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [np.where(total > 0, part / total, MISSING).astype(np.float32) for part in parts_of]
    return SharePlanes(**{name: share.reshape(scale.shape) for name, share in zip(_NAMES, shares, strict=True)})


def _add(
    sums: npt.NDArray[np.float64],
    rows: HistRows,
    origin: int,
    cell: int,
    formats: Mapping[int, str | None],
    scale: npt.NDArray[np.float64],
) -> None:
    """Add up elements below and above the limits, and all of them. Rows of one cell have one scale, so that counts of
    rows add up to those of their sum."""
    if not len(rows.steps):
        return
    column = rows.steps // cell - origin
    place = column * scale.shape[1] + rows.layer
    sparse = SparseHistograms(rows.first, rows.length, rows.counts.astype(np.int64))
    shares = sparse_shares(sparse, scale[column, rows.layer], [formats[layer] or "" for layer in rows.layer.tolist()])
    known = ~np.isnan(shares.under)
    total = np.where(known, sparse.total, 0.0)
    for into, name in zip(sums, _NAMES, strict=False):
        into += np.bincount(place, np.where(known, getattr(shares, name) * total, 0.0), len(into))
    sums[-1] += np.bincount(place, total, len(sums[-1]))


_NAMES = ("under", "over_low", "over_high", "floor")
