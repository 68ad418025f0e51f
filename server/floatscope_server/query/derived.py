"""Shares of any format at any scale, from stored histograms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope._summary import SparseHistograms, sparse_shares
from floatscope_server.models import Run
from floatscope_server.query.fields import MISSING
from floatscope_server.query.histogram import tail_rows
from floatscope_server.query.line import Stretch, stream_id
from floatscope_server.query.sealed_histograms import SealedHistograms
from floatscope_server.store.shapes import HISTOGRAM_BLOCK
from floatscope_server.tiles.hist import HistRows

__all__ = ["SharePlanes", "share_planes"]

Plane = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlanes:
    """[cells, layers] each, "not observed" where no histogram was taken: of the finite non-zero elements, what rounds
    to zero, lies above the maximum (at least, at most), and lands on one of the three smallest magnitudes."""

    under: Plane
    over_low: Plane
    over_high: Plane
    floor: Plane


def share_planes(
    session: Session,
    run: Run,
    kind: str,
    stretch: Stretch,
    *,
    cell: int,
    formats: Mapping[int, str | None],
    scale: npt.NDArray[np.float64],
) -> SharePlanes:
    """The shares in ``formats`` (by layer; None leaves it out) over ``stretch`` in cells of ``cell`` steps, a power of
    two, the first of which begins at ``stretch.first // cell * cell``.

    ``scale`` [cells, layers] is the factor at the cast, NaN where it is not known. A cell holds the shares of all
    elements of its histograms together, not of its worst step. ``KeyError`` for an unknown format.
    """
    assert run.id is not None
    cells, size = scale.shape
    stream = stream_id(session, run.id, f"hist/{kind}")
    sums = np.zeros((len(_NAMES) + 1, cells * size))
    if stream is not None:
        asked = sorted(layer for layer, name in formats.items() if name is not None and layer < size)
        tail = tail_rows(session, run, stream, stretch, None)
        parts = [tail.take(np.flatnonzero((tail.steps >= stretch.first) & (tail.steps <= stretch.last)))]
        for block in sorted({layer // HISTOGRAM_BLOCK for layer in asked}):
            # One block after the other: all at once would be a gigabyte for 300 layers and 600 cells.
            parts.append(
                SealedHistograms(session, stream, stretch.attempt, [block]).records(stretch.first, stretch.last, cell)
            )
            for rows in parts:
                _add(sums, rows.take(np.flatnonzero(np.isin(rows.layer, asked))), stretch, cell, formats, scale)
            parts.clear()
    *parts_of, total = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [np.where(total > 0, part / total, MISSING).astype(np.float32) for part in parts_of]
    return SharePlanes(**{name: share.reshape(scale.shape) for name, share in zip(_NAMES, shares, strict=True)})


def _add(
    sums: npt.NDArray[np.float64],
    rows: HistRows,
    stretch: Stretch,
    cell: int,
    formats: Mapping[int, str | None],
    scale: npt.NDArray[np.float64],
) -> None:
    """Add up elements below and above the limits, and all of them. Rows of one cell have one scale, so that counts of
    rows add up to those of their sum."""
    if not len(rows.steps):
        return
    column = rows.steps // cell - stretch.first // cell
    place = column * scale.shape[1] + rows.layer
    sparse = SparseHistograms(rows.first, rows.length, rows.counts.astype(np.int64))
    shares = sparse_shares(sparse, scale[column, rows.layer], [formats[layer] or "" for layer in rows.layer.tolist()])
    known = ~np.isnan(shares.under)
    total = np.where(known, sparse.total, 0.0)
    for into, name in zip(sums, _NAMES, strict=False):
        into += np.bincount(place, np.where(known, getattr(shares, name) * total, 0.0), len(into))
    sums[-1] += np.bincount(place, total, len(sums[-1]))


_NAMES = ("under", "over_low", "over_high", "floor")
