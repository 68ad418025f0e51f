"""A flight recorder's dump as a stream of its own: every step of it in cells, as ``window`` gives them of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.models import Run
from floatscope_server.query.cells import Cells, Wanted
from floatscope_server.query.dumps import dump_bodies
from floatscope_server.query.stepwise import made_plane
from floatscope_server.query.window import Window
from floatscope_server.tiles.geometry import COLUMNS, Geometry
from floatscope_server.tiles.planes import joined, raw_planes
from floatscope_server.tiles.statistics import Agg

__all__ = ["DumpWindow", "dump_window"]

_BLOCK = Geometry().block


@dataclass(slots=True, kw_only=True)
class DumpWindow:
    """Statistics and histograms of one kind, by rank in the order in which they were taken."""

    attempt: int
    frames: list[tuple[int, Frame]] = field(default_factory=list)
    histograms: list[tuple[int, wire.Histograms]] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """Another one once more has arrived: nothing of a dump changes."""
        return len(self.frames), len(self.histograms)

    def span(self, first: int | None, last: int | None) -> tuple[int, int] | None:
        """What of the steps ``first`` to ``last`` it may hold."""
        if not self.frames:
            return None
        low = min(frame.first_step for _, frame in self.frames)
        high = max(frame.first_step + frame.steps - 1 for _, frame in self.frames)
        low, high = max(low, first or 0), high if last is None else min(high, last)
        return (low, high) if low <= high else None

    def window(
        self, *, first: int, last: int, cell: int, wanted: Collection[Wanted], layers: npt.NDArray[np.intp]
    ) -> Window:
        """As ``TileReader.window``; what is expanded at once is one block of layers by the columns of a tile."""
        origin = first // cell * cell
        count = last // cell - first // cell + 1
        cells = Cells.of(wanted, origin=origin, cell=cell, count=count, layers=len(layers))
        ranks = len({rank for rank, _ in self.frames})
        blocks = layers // _BLOCK
        for number, frames in self._by_tile(origin, origin + count * cell - 1):
            for block in np.unique(blocks).tolist():
                rows = np.flatnonzero(blocks == block)
                planes = raw_planes(
                    frames,
                    first=number * COLUMNS,
                    columns=COLUMNS,
                    layers=_BLOCK,
                    ranks=ranks,
                    first_layer=block * _BLOCK,
                )
                low = max(origin - number * COLUMNS, 0)
                high = min(origin + count * cell - number * COLUMNS, COLUMNS)
                for what in wanted:
                    made = made_plane(what, planes)
                    if made is None:
                        continue
                    values = made[layers[rows] - block * _BLOCK, low:high]
                    at = number * COLUMNS + low
                    if what[1] == Agg.MEAN:
                        cells.add_mean(what, rows, values, np.ones(values.shape, np.float32), first=at, width=1)
                    else:
                        cells.add(what, rows, values, first=at, width=1)
        return Window(first=origin, cell=cell, planes=cells.finish(), resolution=cell, damaged=0)

    def _by_tile(self, first: int, last: int) -> list[tuple[int, Sequence[tuple[int, Frame]]]]:
        """The frames that touch each stretch of ``COLUMNS`` steps: those in between may be very many."""
        found: dict[int, list[tuple[int, Frame]]] = {}
        for rank, frame in self.frames:
            low, high = max(frame.first_step, first), min(frame.first_step + frame.steps - 1, last)
            for number in range(low // COLUMNS, high // COLUMNS + 1) if low <= high else ():
                found.setdefault(number, []).append((rank, frame))
        return sorted((number, joined(frames)) for number, frames in found.items())


def dump_window(session: Session, run: Run, name: str, *, kind: str, rank: int | None, histograms: bool) -> DumpWindow:
    """What the dump ``name`` holds of a kind of tensor: statistics, or ``histograms``; of all ranks or of ``rank``.

    ``UnknownDumpError`` if there is none, ``DumpTooLargeError`` when it would take the server too much memory.
    """
    found = DumpWindow(attempt=run.attempt)
    for of_rank, attempt, body in dump_bodies(session, run, name, kind=kind, rank=rank, histograms=histograms):
        found.attempt = attempt
        found.frames += [(of_rank, Frame.of(part)) for part in body.summaries]
        found.histograms += [(of_rank, part) for part in body.histograms]
    return found
