"""Planes as the rows of tiles that are stored, and back: what gives way to another plane has no row."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from floatscope_server.tiles.codec import MISSING, MISSING64, Flag, TileError, decode, encode, is_missing
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Plane, Planes, same_bits
from floatscope_server.tiles.statistics import POOLED, RAW, Agg, Stat

__all__ = ["TileRow", "beside", "decoded", "encoded", "grown", "spliced"]

_log = logging.getLogger(__name__)


class TileRow(NamedTuple):
    """The columns of ``models.TileRaw`` and ``models.Tile`` that depend on the content."""

    stat: int
    agg: int
    flags: int
    data: bytes


def encoded(planes: Planes, geometry: Geometry, *, level: int, first_layer: int, first_column: int) -> list[TileRow]:
    """The rows of ``planes``: at level 0 those of ``raw_planes``, above it those of ``pool``."""
    rows: list[TileRow] = []
    for (stat, agg), plane in planes.items():
        if level and agg in (Agg.MIN, Agg.MEAN):
            top = planes.get((stat, Agg.MAX))
            if top is None or same_bits(plane, top):
                continue
        kept = RAW.get(stat) if level == 0 else POOLED.get(stat)
        exact = agg in (Agg.RANK, Agg.WEIGHT) or (POOLED[stat] if kept is None else kept).exact
        bits = 23 if exact else geometry.keep_bits if level == 0 else geometry.keep_bits_pooled
        made = encode(plane, first_layer=first_layer, first_column=first_column, keep_bits=bits)
        if made is not None:
            rows.append(TileRow(int(stat), int(agg), int(made[0]) | _apart(planes, level, stat, agg), made[1]))
    return rows


def decoded(rows: Iterable[TileRow], *, level: int) -> Planes:
    """All planes of what ``encoded`` made ``rows`` of. A damaged row is missing throughout, and the log says so."""
    planes: Planes = {}
    flags: dict[Stat, Flag] = {}
    for row in rows:
        stat, agg = Stat(row.stat), Agg(row.agg)
        try:
            planes[stat, agg] = decode(row.data).values
        except TileError as error:
            _log.error("a tile of %s (%s) cannot be read: %s", stat.name, agg.name, error)
            continue
        if agg == Agg.MAX:
            flags[stat] = Flag(row.flags)
    for stat, flag in flags.items() if level else ():
        if stat == Stat.STEPS:
            continue
        top = planes[stat, Agg.MAX]
        for agg, apart in ((Agg.MIN, Flag.MIN_APART), (Agg.MEAN, Flag.MEAN_APART)):
            if apart not in flag:
                planes[stat, agg] = top
            elif (stat, agg) not in planes:
                planes[stat, agg] = np.full(top.shape, _missing(top), top.dtype)
    return planes


def beside(parts: Sequence[Planes], widths: Sequence[int], layers: int) -> Planes:
    """``parts`` one after the other, each of so many columns; a plane that one of them does not have is missing there,
    or what it gives way to."""
    whole: Planes = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        pieces = [_or_default(part, key, width, layers) for part, width in zip(parts, widths, strict=True)]
        if any(piece.dtype == np.float64 for piece in pieces):
            pieces = [_wide(piece) for piece in pieces]
        whole[key] = np.concatenate(pieces, axis=1)
    return whole


def spliced(
    held: Planes, piece: Planes, first: int, columns: npt.NDArray[np.bool_], *, layers: int, width: int
) -> Planes:
    """``held`` (pooled, of ``width`` columns) with those ``columns`` of ``piece`` in their place from ``first``
    on."""
    whole: Planes = {}
    where = first + np.flatnonzero(columns)
    for key in {**held, **piece}:
        base = _or_default(held, key, width, layers)
        given = _or_default(piece, key, len(columns), layers)
        if np.float64 in (base.dtype, given.dtype):
            base, given = _wide(base), _wide(given)
        base = base.copy()
        base[:, where] = given[:, columns]
        whole[key] = base
    steps = whole.get((Stat.STEPS, Agg.MAX))
    return {
        key: plane
        for key, plane in whole.items()
        if key[1] != Agg.WEIGHT or steps is None or not same_bits(plane, steps)
    }


def _or_default(part: Planes, key: tuple[Stat, Agg], width: int, layers: int) -> Plane:
    stat, agg = key
    plane = part.get(key)
    if plane is None and agg == Agg.WEIGHT and (stat, Agg.MAX) in part:
        plane = part.get((Stat.STEPS, Agg.MAX))
    if plane is None:
        return np.full((layers, width), MISSING, np.float32)
    return grown(plane, layers)


_APART = (
    (Agg.MAX, int(Flag.MAX_APART)),
    (Agg.MIN, int(Flag.MIN_APART)),
    (Agg.MEAN, int(Flag.MEAN_APART)),
    (Agg.WEIGHT, int(Flag.WEIGHT_APART)),
)


def _apart(planes: Planes, level: int, stat: Stat, agg: Agg) -> int:
    flags = 0
    if agg != (Agg.MAX if level else Agg.VALUE):
        return flags
    of = planes[stat, agg]
    for other, flag in _APART:
        plane = planes.get((stat, other))
        if other != agg and plane is not None and (other == Agg.WEIGHT or not same_bits(plane, of)):
            flags |= flag
    return flags


def grown(plane: Plane, layers: int) -> Plane:
    """``plane`` with missing layers up to ``layers``."""
    if len(plane) >= layers:
        return plane
    return np.concatenate((plane, np.full((layers - len(plane), plane.shape[1]), _missing(plane), plane.dtype)))


def _wide(plane: Plane) -> Plane:
    if plane.dtype == np.float64:
        return plane
    wide = plane.astype(np.float64)
    wide[is_missing(plane)] = MISSING64
    return wide


def _missing(plane: Plane) -> np.float32 | np.float64:
    return np.float64(MISSING64) if plane.dtype == np.float64 else np.float32(MISSING)
