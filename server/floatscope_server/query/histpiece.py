"""Histograms of one attempt of a stream: those of its tiles and of its open tail together, each step once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope_server.models import Run
from floatscope_server.query.histtails import HistTails
from floatscope_server.query.line import Stretch
from floatscope_server.query.ranks import reach_of
from floatscope_server.query.sealed_histograms import SealedHistograms
from floatscope_server.store.shapes import HISTOGRAM_BLOCK
from floatscope_server.tiles.hist import HistRows

__all__ = ["HistPiece"]

_MOST_READ_ANEW = 1 << 16
"""Steps around late rows that are read in full, so that what came twice counts once. Beyond, what is sealed and what
came late are both added up until the late rows are sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistPiece:
    """Steps ``first`` to ``last`` of ``layers`` (numbers, all in the blocks of ``sealed``); ``tail`` has their rows
    that are not sealed, at least of these steps."""

    sealed: SealedHistograms
    tail: HistRows
    first: int
    last: int
    layers: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, session: Session, tails: HistTails, run: Run, stream: int, part: Stretch, layers: Collection[int]
    ) -> HistPiece:
        """Of an attempt's ``part``."""
        complete_to = reach_of(session, run, part.attempt).complete_to
        tail = tails.rows(session, stream, part.attempt, complete_to)
        wanted = np.array(sorted(layers), np.int64)
        begin = tail.steps + tail.ahead
        inside = np.isin(tail.layer, wanted) & (begin <= part.last) & (begin + tail.span > part.first)
        return cls(
            sealed=SealedHistograms(session, stream, part.attempt, np.unique(wanted // HISTOGRAM_BLOCK).tolist()),
            tail=tail.take(np.flatnonzero(inside)),
            first=part.first,
            last=part.last,
            layers=wanted,
        )

    def most_rows(self) -> int:
        """No block of the tiles has more."""
        return self.sealed.most_rows(self.first, self.last)

    def span(self) -> tuple[int, int] | None:
        """Steps between which all rows begin; None without any."""
        found = self.sealed.span(self.first, self.last)
        steps = self._begin().steps
        if not len(steps):
            return found
        low, high = int(steps[0]), int(steps[-1])
        return (low, high) if found is None else (min(found[0], low), max(found[1], high))

    def rows(self) -> HistRows:
        """Those that share steps with this stretch, as they were taken."""
        found = self.sealed.touching(self.first, self.last, self.layers)
        return HistRows.joined([found, self.tail])

    def records(self, cell: int, block: int | None = None) -> HistRows:
        """Those that begin in this stretch, of ``block`` or of all, added up to stretches of ``cell`` steps or finer;
        in no order."""
        layers, tail = self.layers, self._begin()
        if block is not None:
            layers = layers[layers // HISTOGRAM_BLOCK == block]
            tail = tail.take(np.flatnonzero(tail.layer // HISTOGRAM_BLOCK == block))
        parts = [HistRows.none()]
        start = self.first
        cells = np.unique(tail.steps[tail.steps <= self.sealed.last_step] // cell)
        if len(cells) * cell <= _MOST_READ_ANEW:
            of_tail = tail.steps // cell
            for at in cells.tolist():
                low, high = max(self.first, at * cell), min(self.last, at * cell + cell - 1)
                late = tail.take(np.flatnonzero(of_tail == at))
                parts.append(self.sealed.records(start, low - 1, cell, layers, block))
                parts.append(HistRows.joined([self.sealed.records(low, high, 1, layers, block), late]))
                start = high + 1
            tail = tail.take(np.flatnonzero(~np.isin(of_tail, cells)))
        parts += [self.sealed.records(start, self.last, cell, layers, block), tail]
        return HistRows.concatenated(parts)

    def cost(self, cell: int) -> int:
        """How many rows ``records`` would have to read, about."""
        return self.sealed.rows_at(self.first, self.last, cell) + len(self.tail.steps)

    def _begin(self) -> HistRows:
        inside = (self.tail.steps >= self.first) & (self.tail.steps <= self.last)
        return self.tail if inside.all() else self.tail.take(np.flatnonzero(inside))
