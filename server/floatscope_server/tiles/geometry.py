"""How a stream is cut into tiles.

Column ``c`` of level ``k`` covers the steps ``[c * fan**k, (c + 1) * fan**k)``. A full tile has ``columns`` columns of
``block`` layers at every level, and begins at column ``idx * columns``. Levels above 0 grow by parts of
``columns // fan`` columns, one for each full tile of the level below; ``fan`` parts are merged to one full tile.

What is stored of a stream is what lies before its watermark (``StreamState.sealed``): at level ``k`` the tiles before
``full_tiles(k, sealed)`` are full ones, and what follows them are the parts from there to ``parts_end(k, sealed)``. A
tile or part of steps that nobody observed has no row, and rows beyond these numbers are not valid: they are on their
way, or were.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COLUMNS", "Geometry"]

COLUMNS = 256
"""Columns of a full tile. 512 or 1024 change bytes by 2 to 3 % and latency not at all, but the open tail grows."""

_BLOCK = 64
_WIDE_LAYERS = 600
"""From here on levels differ by 4 instead of 8: half of the 99th percentile of a heat map over 2000 layers."""

_KEEP_BITS = 12
_KEEP_BITS_POOLED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Fixed for a stream when its first tile is written.

    ``keep_bits``, ``keep_bits_pooled``: bits of the mantissa that are kept at level 0 and above, 23 for all; the
    relative error is at most ``2**-(bits + 1)``.
    """

    columns: int = COLUMNS
    fan: int = 8
    block: int = _BLOCK
    keep_bits: int = _KEEP_BITS
    keep_bits_pooled: int = _KEEP_BITS_POOLED

    @classmethod
    def for_layers(cls, layers: int) -> Geometry:
        """The best one for a run of so many layers."""
        return cls(fan=8 if layers <= _WIDE_LAYERS else 4)

    @property
    def part_columns(self) -> int:
        """Columns of a part."""
        return self.columns // self.fan

    def cell(self, level: int) -> int:
        """Steps in a column of ``level``."""
        return int(self.fan**level)

    def span(self, level: int) -> int:
        """Steps in a full tile of ``level``."""
        return self.columns * self.cell(level)

    def full_tiles(self, level: int, sealed: int) -> int:
        """Number of the first tile of ``level`` that is not full while ``sealed`` columns are stored."""
        return sealed // self.span(level)

    def parts_end(self, level: int, sealed: int) -> int:
        """Number of the first part of ``level`` (above 0) that is not there while ``sealed`` columns are stored; the
        first one that is there is ``full_tiles * fan``."""
        return sealed // self.span(level - 1)

    def level_of(self, cell: int) -> int:
        """The highest level whose column fits into ``cell`` steps a whole number of times."""
        level = 0
        while cell % self.cell(level + 1) == 0:
            level += 1
        return level
