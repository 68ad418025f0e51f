"""What a histogram tile holds: sparse histograms of layers by steps, merged over the ranks.

Row r of layer ``layer[r]`` covers ``span[r]`` steps from ``steps[r] + ahead[r]``; bin ``first[r]`` is that of its
first count, ``length[r]`` of which lie one row after the other in ``counts``. ``sampled`` elements went into it.
``complete``: each rank has its share in it; ``ranks``: how many have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.tiles.columns import Column, decode_columns, encode_columns
from floatscope_server.tiles.ragged import places, starts_of

__all__ = ["BINS", "HistRows"]

BINS = 512
_KIND = 3

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HistRows:
    """In the order of ``steps``, those of one step in the order of ``layer``. All int64 but ``complete`` (bool) and
    ``counts`` (uint64, flat)."""

    steps: Int64
    ahead: Int64
    span: Int64
    layer: Int64
    first: Int64
    length: Int64
    sampled: Int64
    ranks: Int64
    complete: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.uint64]

    @classmethod
    def none(cls) -> HistRows:
        """No rows."""
        rows: dict[str, Any] = {name: np.empty(0, np.int64) for name in _ROW}
        return cls(**{**rows, "complete": np.empty(0, np.bool_), "counts": np.empty(0, np.uint64)})

    @classmethod
    def joined(cls, parts: Sequence[HistRows]) -> HistRows:
        """All of ``parts``, whatever their order.

        Of rows of the same step and layer: what was not complete is added up. What was stays, unless it was of one rank
        and came again: then the last one stands.
        """
        together, group = cls._ordered(parts)
        if len(group) == 0 or group[-1] == len(group) - 1:
            return together
        begin = np.flatnonzero(np.append(True, group[1:] != group[:-1]))[group]
        last = np.append(group[1:] != group[:-1], True)
        whole, alone = together.complete[begin], together.ranks[begin] == 1
        use = ~whole | np.where(alone, last, begin == np.arange(len(group)))
        return together.take(use).added(group[use])

    @classmethod
    def latest(cls, parts: Sequence[HistRows]) -> HistRows:
        """All of ``parts``; of rows of the same step and layer the last one stands."""
        together, group = cls._ordered(parts)
        return together if not len(group) else together.take(np.append(group[1:] != group[:-1], True))

    @classmethod
    def concatenated(cls, parts: Sequence[HistRows]) -> HistRows:
        """All of ``parts`` one after the other."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in (*_ROW, "counts")})

    @classmethod
    def _ordered(cls, parts: Sequence[HistRows]) -> tuple[HistRows, Int64]:
        """The rows in order, those of one step and layer as they came; and a number for each such group, ascending."""
        together = cls.concatenated(parts)
        together = together.take(np.lexsort((together.layer, together.steps)))
        apart = (together.steps[1:] != together.steps[:-1]) | (together.layer[1:] != together.layer[:-1])
        return together, np.cumsum(np.append(False, apart))[: len(together.steps)]

    def take(self, index: Any) -> HistRows:  # noqa: ANN401 - whatever NumPy takes
        """Some rows."""
        rows = {name: getattr(self, name)[index] for name in _ROW}
        counts = self.counts[places(starts_of(self.length)[index], rows["length"])]
        return HistRows(**rows, counts=counts)

    def added(self, group: npt.NDArray[Any]) -> HistRows:
        """Rows of equal ``group``, which ascends, as one; its step is that of the first."""
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        if len(starts) == len(group):
            return self
        member = np.cumsum(np.append(False, group[1:] != group[:-1]))
        there = self.length > 0
        low = np.minimum.reduceat(np.where(there, self.first, BINS), starts)
        high = np.maximum.reduceat(np.where(there, self.first + self.length, 0), starts)
        low = np.minimum(low, high)
        length = high - low
        counts = np.zeros(int(length.sum()), np.uint64)
        np.add.at(counts, places(starts_of(length)[member] + self.first - low[member], self.length), self.counts)
        begin = np.minimum.reduceat(self.steps + self.ahead, starts)
        end = np.maximum.reduceat(self.steps + self.ahead + self.span, starts)
        steps = self.steps[starts]
        return HistRows(
            steps=steps,
            ahead=begin - steps,
            span=end - begin,
            layer=self.layer[starts],
            first=low,
            length=length,
            sampled=np.add.reduceat(self.sampled, starts),
            ranks=np.add.reduceat(self.ranks, starts),
            complete=np.logical_and.reduceat(self.complete, starts),
            counts=counts,
        )

    def pooled(self, cell: int) -> HistRows:
        """The sums over stretches of ``cell`` steps, aligned to multiples of it."""
        cells = self.steps // cell * cell
        order = np.lexsort((self.layer, cells))
        rows, cells = self.take(order), cells[order]
        changes = (cells[1:] != cells[:-1]) | (rows.layer[1:] != rows.layer[:-1])
        columns = {name: getattr(rows, name) for name in (*_ROW, "counts")}
        moved = HistRows(**{**columns, "steps": cells, "ahead": rows.steps + rows.ahead - cells})
        return moved.added(np.append(0, np.cumsum(changes)))

    def dense(self) -> npt.NDArray[np.int64]:
        """[rows, 512]."""
        counts = np.zeros((len(self.steps), BINS), np.int64)
        row = np.repeat(np.arange(len(self.steps)), self.length)
        counts[row, places(self.first, self.length)] = self.counts
        return counts

    def encoded(self) -> bytes:
        """As bytes."""
        columns: list[Column] = [self.steps, self.ahead, self.span, self.layer]
        columns += [self.first.astype(np.uint16), self.length.astype(np.uint16), self.sampled]
        columns += [_narrowed(self.ranks), self.complete.astype(np.uint8), _narrowed(self.counts)]
        return encode_columns(_KIND, columns)

    @classmethod
    def decoded(cls, data: bytes) -> HistRows:
        """From bytes; ``TileError`` if they are damaged."""
        steps, ahead, span, layer, first, length, sampled, ranks, complete, counts = decode_columns(_KIND, data)
        return cls(
            steps=steps,
            ahead=ahead,
            span=span,
            layer=layer,
            first=first.astype(np.int64),
            length=length.astype(np.int64),
            sampled=sampled,
            ranks=ranks.astype(np.int64),
            complete=complete.astype(np.bool_),
            counts=counts.astype(np.uint64),
        )


_ROW = tuple(field.name for field in fields(HistRows) if field.name != "counts")


def _narrowed(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """In the smallest unsigned type that holds it."""
    largest = int(column.max(initial=0))
    return column.astype(np.min_scalar_type(largest))
