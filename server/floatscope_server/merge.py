"""One merge over the ranks of a run: shards and data add, of replicas one counts, what is only known locally stays.

Counts, zeros, NaNs, infinities, sum and sumsq add; absmax is the largest and absmin the smallest; shares of under- and
overflow are weighted by the finite non-zero elements that they are of; the scale is that of the rank whose largest
magnitude is the largest as its format meets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from floatscope_server.frame import F64, FIELD_DTYPES, Frame

__all__ = ["MERGING", "Merged", "merge_ranks", "unobserved"]

MERGING = ("shard", "replica", "data")
"""Placements whose rows belong together over the ranks; those of any other one are shown rank by rank."""

_ADDING = ("count", "zeros", "nans", "infs", "sum", "sumsq")
_SHARES = ("under", "over_low", "over_high", "floor")

_Fields = dict[str, npt.NDArray[Any]]
_Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """``together`` [steps, all layers of the run] is what merges, over all ranks; ``alone`` the rest, by rank.

    ``argmax`` [steps, layers] is the rank that has the largest magnitude of ``together``, -1 for none, and ``present``
    where any rank has a row of it.
    """

    together: Frame
    present: _Bool
    argmax: npt.NDArray[np.int32]
    alone: dict[int, Frame]

    @property
    def seen(self) -> _Bool:
        """The layers of which anything was measured."""
        seen = self.present.any(axis=0)
        for frame in self.alone.values():
            seen |= frame.observed.any(axis=0)
        return np.asarray(seen)

    def frames(self) -> Iterator[Frame]:
        """Both, for what shows the worst."""
        yield self.together
        yield from self.alone.values()


@dataclass(slots=True)
class _Part:
    """Rows of one rank and placement, spread out over steps and layers."""

    present: _Bool
    fields: _Fields

    @classmethod
    def empty(cls, shape: tuple[int, int], names: Collection[str]) -> _Part:
        return cls(np.zeros(shape, np.bool_), {name: _blank(name, shape) for name in names})

    def put(self, rows: slice, frame: Frame) -> None:
        """A step that came twice: the later one stands."""
        self.present[rows, frame.layers] = True
        for name, plane in self.fields.items():
            plane[rows, frame.layers] = frame.fields.get(name, np.nan)  # only floats may be missing


@dataclass(slots=True)
class _Total:
    """What has been added up so far."""

    part: _Part
    argmax: npt.NDArray[np.int32]
    amax: F64
    weight: dict[str, F64] = field(default_factory=dict)

    def add(self, rank: int, part: _Part, where: _Bool) -> None:
        held, more = self.part.fields, part.fields
        for name in held.keys() & set(_ADDING):
            held[name] += np.where(where, more[name], 0)
        with np.errstate(invalid="ignore"):
            if "absmin" in held:
                held["absmin"] = np.where(where, np.fmin(held["absmin"], more["absmin"]), held["absmin"])
            if "absmax" in held:
                higher = where & ((self.argmax < 0) | (more["absmax"] > held["absmax"]))
                held["absmax"] = np.where(higher, more["absmax"], held["absmax"])
                self.argmax = np.where(higher, np.int32(rank), self.argmax)
            if "scale" in held:
                scale = more["scale"].astype(np.float64)
                amax = more["absmax"].astype(np.float64) * np.where(np.isnan(scale), 1.0, scale)
                higher = where & ~(amax <= self.amax)
                held["scale"] = np.where(higher, more["scale"], held["scale"])
                self.amax = np.where(higher, amax, self.amax)
        for name in held.keys() & set(_SHARES):
            self._share(name, part, where)
        self.part.present |= where

    def _share(self, name: str, part: _Part, where: _Bool) -> None:
        share = part.fields[name].astype(np.float64)
        of = sum((-part.fields[out].astype(np.float64) for out in ("zeros", "nans", "infs")), part.fields["count"])
        known = where & ~np.isnan(share) & (of > 0)
        before = self.weight.setdefault(name, np.zeros(share.shape))
        after = before + np.where(known, of, 0.0)
        held = np.where(before > 0, self.part.fields[name].astype(np.float64), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (held * before + np.where(known, share * of, 0.0)) / after
        self.part.fields[name] = np.where(known, mean, self.part.fields[name]).astype(np.float32)
        self.weight[name] = after


def merge_ranks(
    frames: Iterable[tuple[int, Frame]], steps: npt.NDArray[np.int64], size: int, names: Collection[str] | None = None
) -> Merged:
    """Merge the ``frames`` of one kind, as (rank, frame) in the order of ranks and then of arrival.

    ``steps`` ascend and hold every step of every frame; ``size`` is the number of layers of the run. ``names`` are the
    fields that are wanted, all without it; others may be missing in the result. Copies stand in for the rows of a
    rank that has not reported the step, and one of them where nothing else would be shown: ranks that call each other
    the original.
    """
    wanted = set(FIELD_DTYPES) if names is None else set(names) | {"count"}
    if wanted & set(_SHARES):
        wanted |= {"zeros", "nans", "infs"}
    if "scale" in wanted:
        wanted.add("absmax")
    shape = len(steps), size
    total = _Total(_Part.empty(shape, wanted), np.full(shape, -1, np.int32), np.full(shape, -np.inf))
    reported: dict[int, _Bool] = {}
    copies: dict[tuple[str, int], list[tuple[int, _Part]]] = {}
    alone: dict[int, Frame] = {}
    for rank, of_rank in _by_rank(frames):
        parts: dict[tuple[str, int], _Part] = {}
        for frame in of_rank:
            merging = frame.placement in MERGING
            key = (frame.placement, frame.copy_of) if merging else ("", -1)
            row = int(np.searchsorted(steps, frame.first_step))
            if key not in parts:
                parts[key] = _Part.empty(shape, wanted)
            parts[key].put(slice(row, row + frame.steps), frame)
        reported[rank] = np.logical_or.reduce([part.present.any(axis=1) for part in parts.values()])
        for (placement, copy_of), part in parts.items():
            if not placement:
                alone[rank] = _frame(steps, part)
            elif copy_of >= 0 and copy_of != rank:
                copies.setdefault((placement, copy_of), []).append((rank, part))
            else:
                total.add(rank, part, part.present)
    for (_, original), held in copies.items():
        counted = np.zeros(shape, np.bool_)
        if original in reported:
            counted |= reported[original][:, None]
        for rank, part in held:
            missing = part.present & ~counted
            if missing.any():
                total.add(rank, part, missing)
                counted |= missing
    for rank, part in (copy for held in copies.values() for copy in held):
        missing = part.present & ~total.part.present
        if missing.any():
            total.add(rank, part, missing)
    return Merged(together=_frame(steps, total.part), present=total.part.present, argmax=total.argmax, alone=alone)


def unobserved(frame: Frame, where: _Bool) -> Frame:
    """``frame`` as if nothing had been observed in the cells ``where`` [steps, layers]."""
    fields = {name: np.where(where, _blank(name, ()), values) for name, values in frame.fields.items()}
    return replace(frame, fields=fields)


def _by_rank(frames: Iterable[tuple[int, Frame]]) -> Iterator[tuple[int, list[Frame]]]:
    held: list[Frame] = []
    current: int | None = None
    for rank, frame in frames:
        if rank != current and current is not None:
            yield current, held
            held = []
        current = rank
        held.append(frame)
    if current is not None:
        yield current, held


def _blank(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """What stands where nothing is known."""
    dtype = np.dtype(FIELD_DTYPES[name])
    if name == "absmin":
        return np.full(shape, np.inf, dtype)
    return np.zeros(shape, dtype) if name in (*_ADDING, "absmax") else np.full(shape, np.nan, dtype)


def _frame(steps: npt.NDArray[np.int64], part: _Part) -> Frame:
    layers = np.arange(part.present.shape[1])
    return Frame(first_step=int(steps[0]), steps=len(steps), layers=layers, fields=part.fields)
