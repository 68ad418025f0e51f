"""The tensor statistics of one step, and what is known of the operands they belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.frame import Frame
from floatscope_server.operands import has_judged_limit, operand_of

__all__ = ["BACKWARD", "F64", "Block", "Bool", "Index", "LayerTable", "Operands", "Rows"]

BACKWARD = frozenset({"grad", "act_grad"})
"""Kinds of tensor that carry the loss scale while they are computed, and are swept in reverse order."""

_WITHOUT_NEAR = frozenset({"fp32", "bf16"})

_PARTS = 1 << 24
"""More than there are placements times ranks."""

_WORST: dict[np.ufunc, tuple[str, ...]] = {
    np.logical_or: ("observed", "nonfinite"),
    np.add: ("nans", "infs"),
    np.fmax: ("amax", "scale", "under", "floor", "zeros", "rms"),
}

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One kind at one step: arrays of one length, entry i belonging to the run's layer ``layers[i]``.

    ``observed`` is where anything was measured; ``nonfinite`` counts NaNs and infinities. ``amax`` is the largest
    finite magnitude as the format meets it, that is, times the scale. ``scale`` is 1 where none was reported.
    ``under``, ``floor`` and ``zeros`` are shares, NaN where they were not measured; ``rms`` is that of the finite
    elements. ``part`` tells rows of one layer apart that have different placements.
    """

    kind: str
    layers: Index
    part: Index
    observed: Bool
    nans: Index
    infs: Index
    nonfinite: Bool
    amax: F64
    scale: F64
    under: F64
    floor: F64
    zeros: F64
    rms: F64

    def joined(self, later: Rows) -> Rows:
        """Both as one; of a layer that is in both with the same placement the later row stands."""
        keep = ~np.isin(_PARTS * self.layers + self.part, _PARTS * later.layers + later.part)
        return Rows(
            kind=self.kind,
            **{
                f.name: np.concatenate((getattr(self, f.name)[keep], getattr(later, f.name)))
                for f in dataclasses.fields(self)
                if f.name != "kind"
            },
        )

    def one_each(self) -> Rows:
        """One row for each layer; of several parts of a layer the worst, non-finite elements added up."""
        order = np.argsort(self.layers, kind="stable")
        layers, starts = np.unique(self.layers[order], return_index=True)
        if len(layers) == len(self.layers):
            return self
        return Rows(
            kind=self.kind,
            layers=layers,
            part=self.part[order][starts],
            **{
                name: how.reduceat(getattr(self, name)[order], starts)
                for how, names in _WORST.items()
                for name in names
            },
        )

    def at(self, layer: int) -> int:
        """The position of the run's layer ``layer``, -1 when it has no row here."""
        found = np.flatnonzero(self.layers == layer)
        return int(found[0]) if len(found) else -1


def _part_of(frame: Frame) -> int:
    return wire.PLACEMENTS.index(frame.placement) * (_PARTS // 8) + frame.copy_of + 1


class Block:
    """The summaries of one kind, [steps, layers]; converted once, read step by step."""

    def __init__(self, kind: str, frame: Frame) -> None:
        self.kind = kind
        self.first_step = frame.first_step
        self.steps = frame.steps
        self.layers = frame.layers
        self._part = np.full(len(frame.layers), _part_of(frame))
        self.observed = frame.observed
        self.nans = frame.fields["nans"].astype(np.int64)
        self.infs = frame.fields["infs"].astype(np.int64)
        self.nonfinite = ((self.nans > 0) | (self.infs > 0)) & self.observed
        self.scale = frame.scale
        self.amax = frame.amax
        self.under = frame["under"]
        self.floor = frame["floor"]
        self.zeros = np.divide(
            frame["zeros"], frame["count"], out=np.full(self.observed.shape, np.nan), where=self.observed
        )
        finite = frame["count"] - self.nans - self.infs
        shape = self.observed.shape
        square = np.divide(frame["sumsq"], finite, out=np.full(shape, np.nan), where=finite > 0)
        self.rms: F64 = np.sqrt(square)

    def rows(self, step: int) -> Rows | None:
        """The rows of ``step``; None when the block does not reach it."""
        at = step - self.first_step
        if not 0 <= at < self.steps:
            return None
        return Rows(
            kind=self.kind,
            layers=self.layers,
            part=self._part,
            observed=self.observed[at],
            nans=self.nans[at],
            infs=self.infs[at],
            nonfinite=self.nonfinite[at],
            amax=self.amax[at],
            scale=self.scale[at],
            under=self.under[at],
            floor=self.floor[at],
            zeros=self.zeros[at],
            rms=self.rms[at],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """For one kind, by the run's layer index: the format that the tensor meets.

    ``max`` and ``log2_max`` are NaN where no format is known. ``limited``: its range can be judged by the largest
    finite element. ``crossable``: a non-finite element counts as a crossed limit. ``cast``: still to be rounded, else
    stored in the format already. ``scaled``: by a factor of its own, which is not the loss scale.
    """

    formats: tuple[str | None, ...]
    max: F64
    log2_max: F64
    limited: Bool
    crossable: Bool
    cast: Bool
    scaled: Bool


class LayerTable:
    """The run's layers as arrays by index. Indices without a layer have no name and no operand."""

    def __init__(self, layers: Mapping[int, wire.Layer]) -> None:
        self.layers = layers
        self.size = max(layers, default=-1) + 1
        self.order = np.full(self.size, -1, np.int64)
        self.parameters = np.zeros(self.size, np.int64)
        for index, layer in layers.items():
            self.order[index] = layer.order
            self.parameters[index] = layer.parameters
        self._operands: dict[str, Operands] = {}

    def name(self, index: int) -> str:
        """The qualified name of a layer."""
        layer = self.layers.get(index)
        return f"#{index}" if layer is None else layer.name

    def place(self, index: int) -> int:
        """The place of a layer in execution order; its index where that is not known yet."""
        order = int(self.order[index])
        return index if order < 0 else order

    def format(self, kind: str, index: int) -> str | None:
        """The format that the tensors of ``kind`` of a layer meet, None where none is known."""
        return self.operands(kind).formats[index]

    def formats(self, kind: str) -> tuple[str, ...]:
        """The formats that the tensors of ``kind`` meet in this run."""
        return tuple(sorted({f for f in self.operands(kind).formats if f is not None}))

    def operands(self, kind: str) -> Operands:
        """What the tensors of ``kind`` meet, by layer."""
        found = self._operands.get(kind)
        if found is None:
            found = self._operands[kind] = self._build(kind)
        return found

    def _build(self, kind: str) -> Operands:
        names: list[str | None] = [None] * self.size
        top = np.full(self.size, np.nan)
        limited, crossable, cast, scaled = (np.zeros(self.size, np.bool_) for _ in range(4))
        for index, layer in self.layers.items():
            operand = operand_of(layer, kind)
            if operand is None:
                continue
            names[index] = operand.format
            top[index] = formats[operand.format].max
            crossable[index] = has_judged_limit(operand)
            limited[index] = crossable[index] and operand.format not in _WITHOUT_NEAR
            cast[index] = operand.role == "cast"
            scaled[index] = operand.scaling not in ("none", "loss")
            if kind == "grad" and operand.format == "fp16" and not cast[index]:
                # A parameter's gradient has FP16's limit only where the module computed in FP16: its own dtype says
                # nothing, since it is a sum over micro-batches, uses and ties.
                limited[index] &= any(o.kind == "act" and o.format == "fp16" for o in layer.operands)
        return Operands(
            formats=tuple(names),
            max=top,
            log2_max=np.log2(top),
            limited=limited,
            crossable=crossable,
            cast=cast,
            scaled=scaled,
        )
