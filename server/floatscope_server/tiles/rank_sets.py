"""Which ranks a tile of level 0 has rows of, cell by cell: what one of them sends again is not added a second time.

In a training all cells of a layer have the same ranks: a tile is a number for each cell, and few sets behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floatscope_server.frame import Frame
from floatscope_server.merge import MERGING
from floatscope_server.tiles.codec import TileError
from floatscope_server.tiles.columns import decode_columns, encode_columns

__all__ = ["RankSets", "original_of"]

_KIND = 4

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class RankSets:
    """``ranks`` ascend; bit ``i % 8`` of byte ``i // 8`` of ``bits`` [layers, columns, bytes] says whether ``ranks[i]``
    has a row of the cell."""

    ranks: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint8]

    @classmethod
    def none(cls, layers: int, columns: int) -> RankSets:
        """Nobody has anything."""
        return cls(np.empty(0, np.int64), np.zeros((layers, columns, 0), np.uint8))

    @classmethod
    def of(
        cls, frames: Iterable[tuple[int, Frame]], *, first: int, columns: int, layers: int, first_layer: int = 0
    ) -> RankSets:
        """Of ``frames`` as (rank, frame), in ``columns`` steps from ``first`` and ``layers`` from ``first_layer`` on. A
        copy stands for its original too."""
        seen: dict[tuple[int, int], Bools] = {}
        for rank, frame in frames:
            if frame.first_step >= first + columns or frame.first_step + frame.steps <= first:
                continue
            cut = frame.between(first, first + columns - 1)
            own = np.flatnonzero((cut.layers >= first_layer) & (cut.layers < first_layer + layers))
            if not len(own):
                continue
            key = rank, original_of(rank, frame)
            if key not in seen:
                seen[key] = np.zeros((layers, columns), np.bool_)
            row = cut.first_step - first
            # Of a step that came twice the later one stands.
            seen[key][cut.layers[own] - first_layer, row : row + cut.steps] = cut.observed[:, own].T
        ranks = np.unique(np.array(list(seen), np.int64))
        bits = np.zeros((layers, columns, -(-len(ranks) // 8)), np.uint8)
        for pair, cells in seen.items():
            for place in np.searchsorted(ranks, pair).tolist():
                bits[..., place >> 3] |= cells.astype(np.uint8) << (place & 7)
        return cls(ranks, bits)

    def grown(self, layers: int) -> RankSets:
        """With more layers, that nobody has."""
        more = layers - len(self.bits)
        if more <= 0:
            return self
        return RankSets(self.ranks, np.concatenate((self.bits, np.zeros((more, *self.bits.shape[1:]), np.uint8))))

    def has(self, rank: int) -> Bools:
        """[layers, columns]."""
        place = int(np.searchsorted(self.ranks, rank))
        if place == len(self.ranks) or self.ranks[place] != rank:
            return np.zeros(self.bits.shape[:2], np.bool_)
        return np.asarray((self.bits[..., place >> 3] >> (place & 7)) & 1, np.bool_)

    def any(self) -> Bools:
        """The cells that anybody has a row of."""
        return np.asarray(self.bits.any(axis=2))

    def within(self, other: RankSets) -> Bools:
        """The cells that ``other`` has rows of all the same ranks of, and perhaps of more."""
        _, (ours, theirs) = _alike([self, other])
        return np.asarray(~(ours & ~theirs).any(axis=2))

    def united(self, other: RankSets) -> RankSets:
        """What either has."""
        ranks, (ours, theirs) = _alike([self, other])
        return RankSets(ranks, ours | theirs)

    @classmethod
    def beside(cls, parts: Sequence[RankSets]) -> RankSets:
        """``parts`` one after the other."""
        ranks, bits = _alike(parts)
        return cls(ranks, np.concatenate(bits, axis=1))

    def encoded(self) -> bytes:
        """As bytes."""
        layers, columns, width = self.bits.shape
        cells = self.bits.reshape(layers * columns, width)
        if not width or (cells == cells[:1]).all():
            sets, of_cell = cells[:1], np.zeros(len(cells), np.uint8)
        else:
            keys = np.ascontiguousarray(cells).view(np.dtype((np.void, width))).reshape(-1)
            _, first, place = np.unique(keys, return_index=True, return_inverse=True)
            sets, of_cell = cells[first], place.astype(np.min_scalar_type(len(first) - 1))
        shape = np.array([layers, columns], np.int64)
        return encode_columns(_KIND, [shape, self.ranks, of_cell, sets.reshape(-1)])

    @classmethod
    def decoded(cls, data: bytes) -> RankSets:
        """From bytes; ``TileError`` if they are damaged."""
        columns = decode_columns(_KIND, data)
        if len(columns) != 4 or len(columns[0]) != 2:
            raise TileError("these are no sets of ranks")
        (layers, width), ranks, of_cell, sets = columns
        table = sets.reshape(-1, -(-len(ranks) // 8)) if len(ranks) else np.zeros((1, 0), np.uint8)
        if len(of_cell) != layers * width or (len(of_cell) and int(of_cell.max()) >= len(table)):
            raise TileError("these sets of ranks are not those of a tile")
        return cls(ranks, table[of_cell].reshape(layers, width, -1))


def _alike(parts: Sequence[RankSets]) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.uint8]]]:
    """The ranks of all, and bits by these of as many layers each."""
    ranks = np.unique(np.concatenate([part.ranks for part in parts]))
    layers = max(len(part.bits) for part in parts)
    found = []
    for part in parts:
        if np.array_equal(part.ranks, ranks):
            bits = part.bits
        else:
            places = np.searchsorted(ranks, part.ranks)
            flat = np.unpackbits(part.bits, axis=2, count=len(part.ranks), bitorder="little")
            wide = np.zeros((*part.bits.shape[:2], len(ranks)), np.uint8)
            wide[..., places] = flat
            bits = np.packbits(wide, axis=2, bitorder="little")
        found.append(RankSets(ranks, bits).grown(layers).bits)
    return ranks, found


def original_of(rank: int, frame: Frame) -> int:
    """The rank whose rows those of ``frame`` repeat; ``rank`` itself if they are no copy."""
    return frame.copy_of if frame.placement in MERGING and frame.copy_of >= 0 else rank
