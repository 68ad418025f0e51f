"""Extremes of layers as the summaries that the rules judge."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from floatscope import wire
from floatscope_server.readers import Extreme

__all__ = ["LayerIndex"]


class LayerIndex:
    """Numbers the layers of a file. A tensor of another format is a layer of its own with the same name."""

    def __init__(self) -> None:
        self._index: dict[tuple[str, str, str], int] = {}
        self.layers: dict[int, wire.Layer] = {}

    def _of(self, extreme: Extreme) -> int:
        key = extreme.layer, extreme.kind, extreme.format
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self._index)
            operand = wire.Operand(kind=extreme.kind, format=extreme.format, role=extreme.role, scaling=extreme.scaling)
            # A new mapping: the rules look at the layers again when they get another one.
            self.layers = self.layers | {
                index: wire.Layer(index=index, name=extreme.layer, module_type="", order=index, operands=(operand,))
            }
        return index

    def summaries(self, step: int, extremes: Sequence[Extreme]) -> tuple[wire.Summaries, ...]:
        """One block for each kind of tensor among the extremes of a step; counts are 1, the size is not known."""
        by_kind: dict[str, dict[int, Extreme]] = {}
        for extreme in extremes:
            by_kind.setdefault(extreme.kind, {})[self._of(extreme)] = extreme
        return tuple(_summaries(kind, step, found) for kind, found in by_kind.items())


def _summaries(kind: str, step: int, found: dict[int, Extreme]) -> wire.Summaries:
    values = [extreme.absmax for extreme in found.values()]
    fields = [
        ("count", "<i8", [1] * len(values)),
        ("zeros", "<i8", [int(value == 0) for value in values]),
        ("nans", "<i8", [int(math.isnan(value)) for value in values]),
        ("infs", "<i8", [int(math.isinf(value)) for value in values]),
        ("absmax", "<f4", [value if math.isfinite(value) else 0.0 for value in values]),
    ]
    if any(extreme.under is not None for extreme in found.values()):
        fields.append(("under", "<f4", [math.nan if e.under is None else e.under for e in found.values()]))
    return wire.Summaries(
        kind=kind,
        first_step=step,
        steps=1,
        layers=np.array(list(found), "<u4").tobytes(),
        fields=tuple(
            wire.Field(name=name, dtype=dtype, data=np.array(column, dtype).tobytes()) for name, dtype, column in fields
        ),
    )
