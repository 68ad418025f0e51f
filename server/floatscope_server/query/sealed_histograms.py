"""Reading histogram tiles: any stretch, at the level that answers a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlmodel import Session, col

from floatscope_server.models import HistTile
from floatscope_server.query.sealed import Shelf, answering, cover, dropped_before
from floatscope_server.store.shapes import HISTOGRAM_SHAPE
from floatscope_server.tiles.hist import HistRows

__all__ = ["SealedHistograms"]

Layers = npt.NDArray[np.int64]
"""Numbers of layers."""

_BATCH = 100
"""Tiles read at once: about 4 MB."""


_NEVER = 1 << 62


class SealedHistograms:
    """The tiles of one stream and attempt, of ``blocks`` or of all: listed at once, read when they are needed."""

    def __init__(self, session: Session, stream: int, attempt: int, blocks: Iterable[int] | None = None) -> None:
        self._session = session
        listed: dict[int, dict[int, list[tuple[int, int, int, int]]]] = {}
        statement = select(
            col(HistTile.id),
            col(HistTile.block),
            col(HistTile.level),
            col(HistTile.first_step),
            col(HistTile.last_step),
            col(HistTile.n),
        ).where(col(HistTile.stream_id) == stream, col(HistTile.attempt) == attempt)
        if blocks is not None:
            statement = statement.where(col(HistTile.block).in_(list(blocks)))
        for number, block, level, first, last, n in session.execute(statement.order_by(col(HistTile.first_step))):
            listed.setdefault(block, {}).setdefault(level, []).append((number, first, last, n))
        self._shelves = {block: {k: Shelf.of(rows) for k, rows in levels.items()} for block, levels in listed.items()}

    def most_rows(self, first: int, last: int) -> int:
        """No block has more rows in this stretch."""
        if any(dropped_before(levels, HISTOGRAM_SHAPE) > first for levels in self._shelves.values()):
            # What is only in sums any more cannot be shown row by row.
            return _NEVER
        return max(
            (int(levels[0].n[_before(levels[0], first, last)].sum()) for levels in self._shelves.values()), default=0
        )

    def span(self, first: int, last: int) -> tuple[int, int] | None:
        """Steps between which all rows of this stretch begin; None without any."""
        found = [
            (max(first, int(shelf.first[at][0])), min(last, int(shelf.last[at][-1])))
            for levels in self._shelves.values()
            for shelf in levels.values()
            if len(shelf.id[at := shelf.touching(first, last)])
        ]
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    @property
    def last_step(self) -> int:
        """At which the last row that is sealed begins; -1 before the first."""
        return max((int(levels[min(levels)].last[-1]) for levels in self._shelves.values()), default=-1)

    def touching(self, first: int, last: int, layers: Layers | None = None) -> HistRows:
        """The rows that share steps with this stretch, of ``layers`` or of all."""
        ids = [
            number
            for levels in self._shelves.values()
            if 0 in levels
            for number in levels[0].id[_before(levels[0], first, last)]
        ]
        return HistRows.latest([HistRows.none(), *self._read(0, ids, 0, last, layers, first)])

    def records(
        self, first: int, last: int, cell: int, layers: Layers | None = None, block: int | None = None
    ) -> HistRows:
        """The rows that begin in this stretch, of ``block`` or of all, added up to stretches of ``cell`` steps or
        finer; in no order."""
        parts = [HistRows.none()]
        for (level, low, high), ids in self._covering(first, last, cell, block).items():
            parts += self._read(level, ids, low, high, layers, None)
        return HistRows.concatenated(parts)

    def rows_at(self, first: int, last: int, cell: int) -> int:
        """How many rows the tiles have that ``records`` would read."""
        found = 0
        for shelves in self._shelves.values():
            for level, low, high in self._levels(shelves, first, last, cell):
                found += int(shelves[level].n[shelves[level].touching(low, high)].sum())
        return found

    def _covering(self, first: int, last: int, cell: int, block: int | None) -> dict[tuple[int, int, int], list[int]]:
        wanted: dict[tuple[int, int, int], list[int]] = {}
        for of, shelves in self._shelves.items():
            for level, low, high in self._levels(shelves, first, last, cell) if block in (None, of) else ():
                shelf = shelves[level]
                wanted.setdefault((level, low, high), []).extend(shelf.id[shelf.touching(low, high)].tolist())
        return wanted

    @staticmethod
    def _levels(shelves: dict[int, Shelf], first: int, last: int, cell: int) -> Iterator[tuple[int, int, int]]:
        levels = sorted((level for level in shelves if cell % HISTOGRAM_SHAPE.cell(level) == 0), reverse=True)
        for stretch in cover(first, last, levels or [0], HISTOGRAM_SHAPE) if first <= last else ():
            yield from answering(shelves, HISTOGRAM_SHAPE, *stretch)

    def _read(
        self, level: int, ids: list[int], low: int, high: int, layers: Layers | None, reaching: int | None
    ) -> list[HistRows]:
        parts: list[HistRows] = []
        for start in range(0, len(ids), _BATCH):
            some = [int(number) for number in ids[start : start + _BATCH]]
            for (data,) in self._session.execute(select(col(HistTile.data)).where(col(HistTile.id).in_(some))):
                rows: HistRows = HISTOGRAM_SHAPE.decode(level, data)
                keep = (rows.steps >= low) & (rows.steps <= high)
                if layers is not None:
                    keep &= np.isin(rows.layer, layers)
                if reaching is not None:
                    keep &= rows.steps + rows.ahead + rows.span > reaching
                parts.append(rows.take(np.flatnonzero(keep)))
        return parts


def _before(shelf: Shelf, first: int, last: int) -> slice:
    """As ``touching``, and the tile before: the last row of a layer there may reach over ``first``."""
    at = shelf.touching(first, last)
    return slice(max(at.start - 1, 0), at.stop)
