"""How many steps a column of a page covers."""

from __future__ import annotations

__all__ = ["cell_size"]


def cell_size(first: int, last: int, columns: int) -> int:
    """The smallest power of two of steps per cell with which ``first`` to ``last`` fit ``columns`` aligned cells."""
    cell = 1
    while last // cell - first // cell + 1 > columns:
        cell *= 2
    return cell
