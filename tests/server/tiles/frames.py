"""Random frames, and what they say cell by cell: slow, and for that easy to believe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.merge import MERGING
from floatscope_server.tiles.statistics import Agg, Stat

__all__ = ["Cells", "oracle_raw", "random_frame"]

Cells = dict[tuple[Stat, Agg], dict[tuple[int, int], float]]
"""By statistic and plane, then by layer and step; what is missing is not in it."""

_SHARES = ("under", "over_low", "over_high", "floor")
_STATS = {
    Stat.COUNT: "count",
    Stat.ZEROS: "zeros",
    Stat.NANS: "nans",
    Stat.INFS: "infs",
    Stat.ABSMAX: "absmax",
    Stat.ABSMIN: "absmin",
    Stat.SCALE: "scale",
    Stat.UNDER: "under",
    Stat.OVER_LOW: "over_low",
    Stat.OVER_HIGH: "over_high",
    Stat.FLOOR: "floor",
}


def random_frame(
    rng: np.random.Generator, first_step: int, steps: int, layers: Sequence[int], *, placement: str = ""
) -> Frame:
    """Cells of all kinds: not observed, all zero, with NaNs and infinities, without a histogram, of a huge tensor."""
    shape = steps, len(layers)
    count = rng.choice([0, 7, 100, 1 << 20, (1 << 24) + 1], shape, p=[0.1, 0.2, 0.4, 0.2, 0.1])
    nans = np.where(rng.random(shape) < 0.1, count // 3, 0)
    infs = np.where(rng.random(shape) < 0.1, count - nans, 0)
    finite = count - nans - infs
    zeros = np.where(rng.random(shape) < 0.3, finite, finite // 5)
    alive = finite > zeros
    absmax = np.where(alive, np.exp2(rng.normal(-8, 6, shape)), 0)
    rms = absmax * rng.random(shape)
    fields: dict[str, Any] = {
        "count": count,
        "zeros": zeros,
        "nans": nans,
        "infs": infs,
        "absmax": absmax,
        "absmin": np.where(alive, absmax * rng.random(shape), np.inf),
        "sum": rms * rng.normal(0, 0.5, shape) * finite,
        "sumsq": rms**2 * finite,
    }
    if rng.random() < 0.5:
        fields["scale"] = np.where(rng.random(shape) < 0.8, np.exp2(rng.integers(-4, 5, shape)), np.nan)
    if rng.random() < 0.5:
        fields |= {name: np.where(alive, rng.random(shape), np.nan) for name in _SHARES}
    return Frame(
        first_step=first_step,
        steps=steps,
        layers=np.array(layers, np.int64),
        fields={name: np.asarray(value, FIELD_DTYPES[name]) for name, value in fields.items()},
        placement=placement,
    )


def oracle_raw(frames: Iterable[tuple[int, Frame]], *, several: bool) -> Cells:
    """Level 0 of ``frames`` in the order of arrival; each rank has one placement and nobody copies."""
    latest: dict[tuple[int, int], dict[int, tuple[str, dict[str, float]]]] = {}
    for rank, frame in frames:
        for row in range(frame.steps):
            for place, layer in enumerate(frame.layers.tolist()):
                cell = {name: field[row, place].item() for name, field in frame.fields.items()}
                latest.setdefault((layer, frame.first_step + row), {})[rank] = frame.placement, cell
    cells: Cells = {}
    for where, by_rank in latest.items():
        seen = {rank: cell for rank, (_, cell) in sorted(by_rank.items()) if cell["count"] > 0}
        if not seen:
            continue

        def put(stat: Stat, agg: Agg, value: float, at: tuple[int, int] = where) -> None:
            if not math.isnan(value):
                cells.setdefault((stat, agg), {})[at] = value

        whole = _added(list(seen.values()))
        of_whole = _stats(whole)
        for stat, value in of_whole.items():
            put(stat, Agg.VALUE, value)
        if several:
            put(Stat.ABSMAX, Agg.RANK, max(seen, key=lambda rank: (seen[rank]["absmax"], -rank)))
        merging = [cell for rank, cell in seen.items() if by_rank[rank][0] in MERGING]
        units = [cell for rank, cell in seen.items() if by_rank[rank][0] not in MERGING]
        of_units = [
            _stats(unit) for unit in [*([_added(merging)] if any(cell["count"] for cell in merging) else []), *units]
        ]
        for stat in of_whole:
            found = [unit[stat] for unit in of_units if not math.isnan(unit[stat])]
            if stat == Stat.ABSMIN:
                found = [value for value in found if value != math.inf]
            put(stat, Agg.MAX, max(found, default=of_whole[stat]))
            put(stat, Agg.MIN, min(found, default=of_whole[stat]))
        put(Stat.LOG2_AMAX, Agg.MAX, max(_stats(cell)[Stat.LOG2_AMAX] for cell in seen.values()))
    return cells


def _added(cells: Sequence[dict[str, float]]) -> dict[str, float]:
    if len(cells) == 1:
        return cells[0]
    whole = {name: sum(cell[name] for cell in cells) for name in ("count", "zeros", "nans", "infs", "sum", "sumsq")}
    whole["absmax"] = max(cell["absmax"] for cell in cells)
    whole["absmin"] = min(cell["absmin"] for cell in cells)
    top = max(cells, key=lambda cell: cell["absmax"] * _scale(cell))
    whole["scale"] = top.get("scale", math.nan)
    for name in _SHARES:
        known = [
            (cell[name], of)
            for cell in cells
            if not math.isnan(cell.get(name, math.nan))
            and (of := cell["count"] - cell["zeros"] - cell["nans"] - cell["infs"]) > 0
        ]
        whole[name] = sum(share * of for share, of in known) / sum(of for _, of in known) if known else math.nan
    return whole


def _scale(cell: dict[str, float]) -> float:
    scale = cell.get("scale", math.nan)
    return 1.0 if math.isnan(scale) else scale


def _stats(cell: dict[str, float]) -> dict[Stat, float]:
    stats = {stat: float(cell.get(name, math.nan)) for stat, name in _STATS.items()}
    finite = cell["count"] - cell["nans"] - cell["infs"]
    stats[Stat.MEAN] = cell["sum"] / finite if finite else math.nan
    stats[Stat.RMS] = math.sqrt(cell["sumsq"] / finite) if finite else math.nan
    stats[Stat.ZERO_SHARE] = cell["zeros"] / cell["count"]
    stats[Stat.NONFINITE] = cell["nans"] + cell["infs"]
    amax = cell["absmax"] * _scale(cell)
    stats[Stat.LOG2_AMAX] = math.log2(amax) if amax else -math.inf
    return stats
