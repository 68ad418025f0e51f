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
from floatscope_server.tiles.hist import HistRows

__all__ = ["SharePlanes", "share_planes", "shares_of_rows"]

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
    planes = {name: np.full(scale.shape, MISSING, np.float32) for name in _NAMES}
    stream = stream_id(session, run.id, f"hist/{kind}")
    if stream is not None:
        tail = tail_rows(session, run, stream, stretch, None)
        tail = tail.take(np.flatnonzero((tail.steps >= stretch.first) & (tail.steps <= stretch.last)))
        sealed = SealedHistograms(session, stream, stretch.attempt).records(stretch.first, stretch.last, cell)
        rows = HistRows.concatenated([sealed, tail]).pooled(cell)
        known = np.array([formats.get(layer) is not None for layer in range(scale.shape[1])], np.bool_)
        rows = rows.take(np.flatnonzero((rows.layer < scale.shape[1]) & known[np.minimum(rows.layer, len(known) - 1)]))
        column = rows.steps // cell - stretch.first // cell
        names = [formats[layer] or "" for layer in rows.layer.tolist()]
        shares = shares_of_rows(rows, scale[column, rows.layer], names)
        for name, plane in planes.items():
            share = getattr(shares, name)
            plane[column, rows.layer] = np.where(np.isnan(share), MISSING, share)
    return SharePlanes(**planes)


def shares_of_rows(rows: HistRows, scale: npt.NDArray[np.float64], names: list[str]) -> SharePlanes:
    """[rows] each, NaN where not known: the shares of each row in the format ``names[row]`` at ``scale[row]``."""
    sparse = SparseHistograms(first=rows.first, length=rows.length, counts=rows.counts.astype(np.int64))
    shares = sparse_shares(sparse, scale, names)
    return SharePlanes(**{name: getattr(shares, name).astype(np.float32) for name in _NAMES})


_NAMES = ("under", "over_low", "over_high", "floor")
