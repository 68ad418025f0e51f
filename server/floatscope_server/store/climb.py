"""From a tile of level 0 to the levels above it, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlmodel import Session

from floatscope_server.store.tilestore import Place, StreamKey, read_planes
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Planes, pooled_planes
from floatscope_server.tiles.pool import pool
from floatscope_server.tiles.rows import TileRow, beside, encoded, spliced

__all__ = ["Climb", "completed", "repaired"]


def completed(geometry: Geometry, idx: int, sealed: int) -> list[list[int]]:
    """For each level from 1 on, the tiles that become full when tile ``idx`` of level 0 follows ``sealed`` columns, and
    that can have parts: what lies between was never observed."""
    after = (idx + 1) * geometry.columns
    found: list[list[int]] = []
    while (span := geometry.span(len(found) + 1)) <= after:
        touched = {idx * geometry.columns // span}
        if sealed % span:
            touched.add(sealed // span)
        found.append(sorted(tile for tile in touched if (tile + 1) * span <= after))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """One block of a stream, whose tile ``idx`` of level 0 is being sealed."""

    key: StreamKey
    geometry: Geometry
    block: int
    idx: int

    def rows(self, session: Session, raw: Planes) -> Iterator[tuple[Place, TileRow]]:
        """All rows that come of ``raw``: its own, its part of level 1, and the tiles that become full with it."""
        geometry, block = self.geometry, self.block
        yield from self._placed(Place(0, 0, block, self.idx), raw)
        fresh = {self.idx: pool(pooled_planes(raw), geometry.fan)}
        levels = completed(geometry, self.idx, self.key.sealed)
        for level, full in enumerate(levels, start=1):
            above: dict[int, Planes] = {}
            for tile in full:
                planes = self._merged(session, level, tile, fresh)
                if planes:
                    yield from self._placed(Place(level, 0, block, tile), planes)
                    above[tile] = pool(planes, geometry.fan)
            yield from self._parts(level, {n: part for n, part in fresh.items() if n // geometry.fan not in full})
            fresh = above
        yield from self._parts(len(levels) + 1, fresh)

    def _parts(self, level: int, parts: dict[int, Planes]) -> Iterator[tuple[Place, TileRow]]:
        for number, part in parts.items():
            yield from self._placed(Place(level, 1, self.block, number), part)

    def _merged(self, session: Session, level: int, tile: int, fresh: dict[int, Planes]) -> Planes:
        geometry = self.geometry
        first, end = tile * geometry.fan, (tile + 1) * geometry.fan
        place = Place(level, 1, self.block, first)
        parts = read_planes(session, self.key, place, end)
        parts |= {number: part for number, part in fresh.items() if first <= number < end}
        layers = max((len(plane) for part in parts.values() for plane in part.values()), default=0)
        widths = [geometry.part_columns] * geometry.fan
        return beside([parts.get(number, {}) for number in range(first, end)], widths, layers)

    def encoded(self, place: Place, planes: Planes) -> list[TileRow]:
        """The rows of ``planes`` at ``place``."""
        width = self.geometry.part_columns if place.part else self.geometry.columns
        return encoded(
            planes,
            self.geometry,
            level=place.level,
            first_layer=place.block * self.geometry.block,
            first_column=place.idx * width,
        )

    def _placed(self, place: Place, planes: Planes) -> Iterator[tuple[Place, TileRow]]:
        for row in self.encoded(place, planes):
            yield place, row


def repaired(
    session: Session, climb: Climb, raw: Planes, changed: npt.NDArray[np.bool_]
) -> Iterator[tuple[Place, list[TileRow]]]:
    """The rows of all tiles that depend on ``changed`` [columns] of ``raw``, what tile ``climb.idx`` of level 0 holds
    now: that itself, and at each level above the columns over it."""
    geometry, key, block = climb.geometry, climb.key, climb.block
    place = Place(0, 0, block, climb.idx)
    yield place, climb.encoded(place, raw)
    planes = pooled_planes(raw)
    level, below = 1, climb.idx
    while True:
        piece = pool(planes, geometry.fan)
        over = np.asarray(changed.reshape(-1, geometry.fan).any(axis=1))
        full = below // geometry.fan < geometry.full_tiles(level, key.sealed)
        number = below // geometry.fan if full else below
        width = geometry.columns if full else geometry.part_columns
        first = below % geometry.fan * geometry.part_columns if full else 0
        place = Place(level, 0 if full else 1, block, number)
        held = read_planes(session, key, place, number + 1).get(number, {})
        layers = max(len(plane) for plane in (*held.values(), *piece.values()))
        planes = spliced(held, piece, first, over, layers=layers, width=width)
        yield place, climb.encoded(place, planes)
        if not full:
            return
        changed = np.zeros(geometry.columns, np.bool_)
        changed[first : first + geometry.part_columns] = over
        level, below = level + 1, number
