"""Shares in a format that layers did not run in: a heat map from their histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope_server.models import Run
from floatscope_server.query.cells import Wanted
from floatscope_server.query.derived import affordable_cell, clipped, share_pieces, share_planes
from floatscope_server.query.fields import MISSING, Metric
from floatscope_server.query.histpiece import HistPiece
from floatscope_server.query.layertable import RunLayers
from floatscope_server.query.line import Stretch
from floatscope_server.query.window import Source, TileReader
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["OtherFormat", "other_format"]

Plane = npt.NDArray[np.float32]

_AMAX: Wanted = Stat.LOG2_AMAX, Agg.MAX
_TOP: Wanted = Stat.ABSMAX, Agg.MAX
_SCALE: Wanted = Stat.SCALE, Agg.VALUE

_NAMES = {Stat.UNDER: "under", Stat.OVER_HIGH: "over_high", Stat.FLOOR: "floor"}

_STORED = 2.0**-8
"""Twice what rounding to the mantissa of pooled tiles can move a value, relative to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFormat:
    """The histograms of ``layers`` (numbers), which were not counted in the format ``chosen`` while training, about
    steps ``first`` to ``last``."""

    chosen: str
    layers: npt.NDArray[np.intp]
    pieces: Sequence[HistPiece]
    first: int
    last: int

    def cell(self, cell: int) -> int:
        """``cell``, or a wider one where that would take too long."""
        return affordable_cell(self.pieces, self.first, self.last, cell)

    def plane(
        self,
        session: Session,
        reader: TileReader,
        source: Source,
        line: Sequence[Stretch],
        how: Metric,
        cell: int,
    ) -> Plane:
        """The share [layers, cells] at the scale that each cell has; missing without a histogram."""
        first, last = self.first, self.last
        count = last // cell - first // cell + 1
        scale = _scales(session, reader, source, line, self.layers, first=first, last=last, cell=cell)
        size = int(self.layers[-1]) + 1
        of_all = np.full((count, size), np.nan)
        of_all[:, self.layers] = scale.T
        pieces = clipped(self.pieces, first, last, cell)
        formats = dict.fromkeys(self.layers.tolist(), self.chosen)
        planes = share_planes(pieces, first=first, cell=cell, formats=formats, scale=of_all)
        plane: Plane = getattr(planes, _NAMES[how.stat])
        return np.ascontiguousarray(plane[:, self.layers].T)


def other_format(
    session: Session,
    reader: TileReader,
    run: Run,
    table: RunLayers,
    line: Sequence[Stretch],
    *,
    kind: str,
    chosen: str,
    how: Metric,
    span: tuple[int, int],
    layers: npt.NDArray[np.intp],
) -> OtherFormat | None:
    """Those of ``layers`` (numbers, ascending) whose shares in ``chosen`` follow from histograms alone; None if there
    are none, or ``how`` needs none."""
    if not how.executed or chosen == "auto":
        return None
    counted: Mapping[int, str | None] = table.formats(kind, chosen, how)
    others = layers[[counted[layer] is None for layer in layers.tolist()]] if len(layers) else layers
    pieces = share_pieces(session, reader.histograms, run, kind, line, others.tolist())
    if not pieces:
        return None
    return OtherFormat(chosen=chosen, layers=others, pieces=pieces, first=span[0], last=span[1])


def _scales(
    session: Session,
    reader: TileReader,
    source: Source,
    line: Sequence[Stretch],
    layers: npt.NDArray[np.intp],
    *,
    first: int,
    last: int,
    cell: int,
) -> npt.NDArray[np.float64]:
    """The factor at the cast [layers, cells]: that with which the largest magnitude of the cell met its format.

    Levels above single steps hold the magnitude before and after the scale, rounded: what is a power of two up to that
    is one. 1 where a layer was not scaled, or only zeros were seen.
    """
    wanted = (_SCALE,) if cell == 1 else (_AMAX, _TOP)
    planes = reader.window(
        session, source, line, first=first, last=last, cell=cell, wanted=wanted, layers=layers
    ).planes
    if cell == 1:
        held = planes[_SCALE]
        return np.where(is_missing(held), 1.0, held.astype(np.float64))
    after, before = (planes[what].astype(np.float64) for what in wanted)
    with np.errstate(invalid="ignore", divide="ignore"):
        bits = after - np.log2(before)
        whole = np.rint(bits)
        near = np.abs(bits - whole) <= _STORED * (np.abs(after) + 2.0)
        scale = np.exp2(np.where(near, whole, bits))
    scale[~np.isfinite(before) | (before <= 0)] = 1.0
    return np.where(np.isnan(scale), MISSING, scale)
