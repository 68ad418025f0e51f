"""Where anything is in a run whose steps may lie far apart: one step of 10^9 is no reason to ask for all before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

__all__ = ["Stretch", "stretches"]

Stretch = tuple[int, int]
"""First and last step."""

_MANY = 64
"""Pieces, of which asking where anything is saves more questions than it takes."""


def stretches(
    first: int, last: int, width: int, occupied: Callable[[int, int], Iterable[Stretch]]
) -> Iterator[Stretch]:
    """All of ``first`` to ``last`` that may hold anything, in order, ``width`` steps at most at once.

    ``occupied(first, last)`` gives, in any order, cells outside of which there is nothing between these steps.
    """
    if last - first >= _MANY * width:
        islands = _joined(occupied(first, last), first, last)
        if sum(high - low + 1 for low, high in islands) <= (last - first) // 2:
            for low, high in islands:
                yield from stretches(low, high, width, occupied)
            return
    for low in range(first, last + 1, width):
        yield low, min(low + width - 1, last)


def _joined(cells: Iterable[Stretch], first: int, last: int) -> list[Stretch]:
    """What of ``cells`` is between ``first`` and ``last``, neighbours as one."""
    joined: list[Stretch] = []
    for low, high in sorted(cells):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], min(high, last))
        else:
            joined.append((max(low, first), min(high, last)))
    return joined
