"""Where new entries go in chunks that zoom.

Level 0 holds entries as they came, level k what was made of them in stretches of ``8**k`` units of steps, aligned to
multiples of that. The levels between 0 and the first one that leaves at most a quarter of the entries are left out: of
a series with a point every 100 steps they would repeat each point. There is no level above one of few entries.

Entries may come in any order and more than once. Chunks of a level never overlap, and each one is written anew when
something comes into its stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

__all__ = ["FAN", "Changes", "Entries", "Piece", "Shape", "cell_of", "grow", "whole_from"]

FAN = 8
"""From one level to the next. 4 is half as slow at worst to read and takes 30 % more room."""


class Entries(Protocol):
    """What a chunk holds; ``steps`` ascend."""

    @property
    def steps(self) -> npt.NDArray[np.int64]: ...

    def take(self, index: Any, /) -> Self: ...  # noqa: ANN401 - whatever NumPy takes

    def pooled(self, cell: int) -> Entries: ...

    def encoded(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How entries of one sort are kept: at most ``size[0]`` in a chunk of level 0 and ``size[1]`` above.

    ``unit`` is what a step counts in cells of the levels, ``fewest`` how many entries of a level need no level above.
    ``joined`` puts parts of a level together; ``decode`` reads a chunk of a level.
    """

    size: tuple[int, int]
    fewest: int
    unit: int
    joined: Callable[[int, Sequence[Any]], Any]
    decode: Callable[[int, bytes], Any]

    def cell(self, level: int) -> int:
        """Steps of an entry of ``level``."""
        return cell_of(level, self.unit)


def cell_of(level: int, unit: int = 1) -> int:
    """Steps of an entry of ``level``; 1 at level 0."""
    return unit * FAN**level if level else 1


@dataclass(slots=True, kw_only=True)
class Piece:
    """A chunk, stored as row ``id`` or new; ``entries`` are read when they are needed."""

    first: int
    last: int
    n: int
    id: int | None = None
    entries: Any = None


@dataclass(slots=True, kw_only=True)
class Changes:
    """Rows that go, and new chunks by level."""

    removed: list[int] = field(default_factory=list)
    added: list[tuple[int, Piece]] = field(default_factory=list)


def grow(levels: dict[int, list[Piece]], new: Any, shape: Shape, load: Callable[[int], bytes]) -> Changes:  # noqa: ANN401
    """Put ``new`` entries (at least one) into ``levels``, which hold all chunks by level in the order of steps.

    ``load`` gives the bytes of a stored chunk. ``levels`` is changed as well.
    """
    before = {piece.id for pieces in levels.values() for piece in pieces}

    def entries(level: int, piece: Piece) -> Any:  # noqa: ANN401 - the shape's entries
        if piece.entries is None:
            assert piece.id is not None
            piece.entries = shape.decode(level, load(piece.id))
        return piece.entries

    level, fresh = 0, new
    while True:
        _put(levels.setdefault(level, []), level, fresh, shape, entries)
        above = _level_above(levels, level, shape)
        if above is None:
            break
        cell = shape.cell(above)
        cells = np.unique(fresh.steps // cell) if levels.get(above) else None
        below = [
            part
            for piece in levels[level]
            if (part := _within(piece, cells, cell, partial(entries, level))) is not None
        ]
        level, fresh = above, shape.joined(level, below).pooled(cell)
    kept = {piece.id for pieces in levels.values() for piece in pieces}
    changes = Changes(removed=sorted(number for number in before - kept if number is not None))
    for level, pieces in levels.items():
        changes.added += [(level, piece) for piece in pieces if piece.id is None]
    return changes


def whole_from(levels: Mapping[int, Sequence[Piece]], shape: Shape) -> int:
    """The step from which on nothing has been dropped that a level above still has; 0 if nothing was. What comes before
    it cannot be brought in: what is above would be made of it alone."""
    there = sorted(level for level, pieces in levels.items() if pieces)
    border = 0
    for low, high in pairwise(sorted({0, *there})):
        cell, above = shape.cell(high), levels[high]
        below = levels.get(low)
        end = below[0].first if below else (above[-1].last // cell + 1) * cell
        if above[0].first < end // cell * cell:
            border = max(border, -(-end // cell) * cell)
    return border


def _level_above(levels: dict[int, list[Piece]], level: int, shape: Shape) -> int | None:
    pooled = sorted(number for number, pieces in levels.items() if number and pieces)
    if level and level + 1 in pooled:
        return level + 1
    if level == 0 and pooled:
        return pooled[0]
    if sum(piece.n for piece in levels[level]) <= shape.fewest:
        return None
    return level + 1 if level else _first_level(levels[0], shape)


def _first_level(pieces: list[Piece], shape: Shape) -> int:
    steps = np.unique(np.concatenate([piece.entries.steps for piece in pieces if piece.entries is not None]))
    stride = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    level = 1
    while shape.cell(level) < 4 * stride:
        level += 1
    return level


def _within(
    piece: Piece, cells: npt.NDArray[np.int64] | None, cell: int, entries: Callable[[Piece], Any]
) -> Any | None:  # noqa: ANN401 - the shape's entries
    """The entries of ``piece`` that lie in ``cells``, all of them for None; None if there are none."""
    if cells is None:
        return entries(piece)
    low, high = np.searchsorted(cells, (piece.first // cell, piece.last // cell + 1))
    if low == high:
        return None
    content = entries(piece)
    of = content.steps // cell
    at = np.minimum(np.searchsorted(cells, of), len(cells) - 1)
    inside = cells[at] == of
    return content.take(inside) if inside.any() else None


def _put(
    pieces: list[Piece],
    level: int,
    new: Any,  # noqa: ANN401 - the shape's entries
    shape: Shape,
    entries: Callable[[int, Piece], Any],
) -> None:
    size = shape.size[min(level, 1)]
    firsts = np.array([piece.first for piece in pieces], np.int64)
    place = np.maximum(np.searchsorted(firsts, new.steps, side="right") - 1, 0)
    if pieces and pieces[-1].n >= size:
        place[new.steps > pieces[-1].last] = len(pieces)
    after: list[Piece] = []
    touched = set(np.unique(place).tolist())
    for number in range(len(pieces) + 1):
        if number not in touched:
            after += pieces[number : number + 1]
            continue
        parts = [entries(level, piece) for piece in pieces[number : number + 1]]
        after += _cut(shape.joined(level, [*parts, new.take(place == number)]), size, last=number >= len(pieces) - 1)
    pieces[:] = after


def _cut(content: Any, size: int, *, last: bool) -> Iterator[Piece]:  # noqa: ANN401 - the shape's entries
    """Chunks of at most ``size`` entries; what belongs to one step stays together. The last chunk of a level is filled
    up, others that overflow are halved."""
    steps = content.steps
    n = len(steps)
    count = -(-n // size)
    cuts = [size * i for i in range(1, count)] if last else [n * i // count for i in range(1, count)]
    bounds = sorted({0, n, *(int(np.searchsorted(steps, steps[cut])) for cut in cuts)})
    for low, high in pairwise(bounds):
        part = content.take(slice(low, high))
        yield Piece(first=int(steps[low]), last=int(steps[high - 1]), n=high - low, entries=part)
