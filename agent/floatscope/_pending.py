"""A finished step on its way to the host, and the arithmetic that turns its rows into a record.

The training thread only starts the copies. Everything that needs the numbers (unscaling, merging the parameters of a
layer, shares of underflow and overflow) happens in ``resolve``, on the sender's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope import wire
from floatscope._formats import formats
from floatscope._record import StepRecord, SummaryRows
from floatscope._recorder import Scalar, StepBuffer
from floatscope._stats import ADDING, STATISTICS
from floatscope._summary import (
    BINS,
    INFINITY_BITS,
    Counts,
    Floats,
    count_at_or_below,
    magnitude_of_bits,
    rescaled_histogram,
)

__all__ = ["Pending"]

CAST, CLIP, FOUND_INF = "cast", "clip", "found_inf"


class _Copies:
    """Equally shaped tensors, of any devices, copied to the host: one stack and one copy for each device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        places: dict[torch.device, list[int]] = {}
        for place, tensor in enumerate(tensors):
            places.setdefault(tensor.device, []).append(place)
        self.devices = [device for device in places if device.type != "cpu"]
        # Off the CPU, a non-blocking copy goes to pinned memory and returns at once.
        self._groups = [
            (indices, torch.stack([tensors[i] for i in indices]).to("cpu", non_blocking=True))
            for indices in places.values()
        ]
        self._length = len(tensors)

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return sum(host.nbytes for _, host in self._groups)

    def array(self, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """The values, [number of tensors, *shape]. Only after the copies have arrived."""
        values = np.empty((self._length, *shape), dtype=dtype)
        for indices, host in self._groups:
            values[indices] = host.numpy()
        return values


@dataclass(frozen=True, slots=True)
class _Given:
    """A scalar of the user's, by its name."""

    name: str


_Key = str | _Given | tuple[str, int, int]
"""A scalar of ours by its name, one of the user's, or something else that was measured in the step: what, of which
optimizer or part, number."""
_Values = dict[_Key, float]

_PREVIOUS_SCALE = ("previous_scale", 0, 0)


class Pending:
    """A ``PendingRecord``; building it starts the copies and records an event for each device."""

    def __init__(
        self,
        buffer: StepBuffer,
        *,
        previous_scale: torch.Tensor | None,
        events: tuple[wire.Event, ...],
        layers: tuple[wire.Layer, ...],
        refuse_scale: Callable[[int, str, str], None],
    ) -> None:
        self._refuse_scale = refuse_scale
        self.step = buffer.step
        self._parts = [
            _Facts(p.kind, p.layer, p.row.elements, p.format, p.loss_scaled, p.in_norm, p.sharded) for p in buffer.parts
        ]
        self._events = events
        self.layers = layers
        values = _values(buffer, previous_scale)
        waiting = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
        self._numbers = {key: value for key, value in values.items() if not isinstance(value, torch.Tensor)}
        self._keys = list(waiting)
        self._waiting = _Copies([value.to(torch.float64).reshape(()) for value in waiting.values()])
        self._statistics = _Copies([part.row.statistics for part in buffer.parts])
        self._hists = _Copies([part.row.hist for part in buffer.parts if part.row.hist is not None])
        copies = (self._waiting, self._statistics, self._hists)
        self.nbytes = 512 + 200 * len(self._parts) + sum(c.nbytes for c in copies)
        self._arrived = [
            torch.accelerator.current_stream(device).record_event() for device in {d for c in copies for d in c.devices}
        ]

    def ready(self) -> bool:
        """Whether every copy has arrived."""
        return all(event.query() for event in self._arrived)

    def resolve(self) -> StepRecord:
        """The record; waits for the copies."""
        for event in self._arrived:
            event.synchronize()
        values = self._numbers | dict(zip(self._keys, self._waiting.array((), np.float64).tolist(), strict=True))
        scale = values.get("loss_scale", 1.0)
        divisor = scale if 0 < scale < math.inf else 1.0
        statistics = self._statistics.array((len(STATISTICS),), np.float64)
        hists = self._hists.array((BINS,), np.int64) if len(self._hists) else None
        carried = np.array([divisor if part.loss_scaled else 1.0 for part in self._parts])
        coming = np.array([self._coming(part, values[CAST, i, 0]) for i, part in enumerate(self._parts)])
        summaries = []
        for kind in dict.fromkeys(part.kind for part in self._parts):
            rows = [i for i, part in enumerate(self._parts) if part.kind == kind]
            parts = [self._parts[i] for i in rows]
            hist = None if hists is None else hists[rows]
            summaries.append(_summary_rows(kind, parts, statistics[rows], hist, carried[rows], coming[rows]))
        in_norm = [i for i, part in enumerate(self._parts) if part.kind == "grad" and part.in_norm]
        # The norm of a shard is not that of the model; the sums of squares of all ranks give that one.
        if in_norm and not any(self._parts[i].sharded for i in in_norm):
            values["grad_norm"] = _norm(statistics[in_norm], carried[in_norm])
        scalars, events = _conclusions(self.step, values, scale)
        return StepRecord(
            step=self.step,
            scalars=scalars,
            summaries=tuple(summaries),
            events=(*self._events, *events),
            layers=self.layers,
        )

    def _coming(self, part: _Facts, scale: float) -> float:
        # An infinite scale is reported: it comes of an all-zero tensor, and the cast gives NaN.
        if scale > 0:
            return scale
        self._refuse_scale(part.layer, part.kind, f"it is {scale:g}")
        return math.nan


class _Facts(NamedTuple):
    """What is known of a part without its numbers."""

    kind: str
    layer: int
    elements: int
    format: str
    loss_scaled: bool
    in_norm: bool
    sharded: bool


def _values(buffer: StepBuffer, previous_scale: torch.Tensor | None) -> dict[_Key, Scalar]:
    values: dict[_Key, Scalar] = {_Given(name): value for name, value in buffer.scalars.items()}
    values.update(buffer.own)
    if buffer.loss_scale is not None:
        values["loss_scale"] = buffer.loss_scale
        if previous_scale is not None:
            values[_PREVIOUS_SCALE] = previous_scale
    if buffer.raw_loss_nonfinite is not None:
        values["raw_loss_nonfinite"] = buffer.raw_loss_nonfinite
    for optimizer, found in buffer.found_inf.items():
        values.update({(FOUND_INF, optimizer, i): flag for i, flag in enumerate(found)})
    values.update({(CLIP, i, 0): coefficient for i, coefficient in enumerate(buffer.clip_coefficients.values())})
    values.update({(CAST, i, 0): part.cast_scale for i, part in enumerate(buffer.parts)})
    return values


def _conclusions(step: int, values: _Values, scale: float) -> tuple[dict[str, float], list[wire.Event]]:
    """The scalars of the step and the events that follow from its numbers."""
    scalars = {key: value for key, value in values.items() if isinstance(key, str)}
    given = {key.name: value for key, value in values.items() if isinstance(key, _Given)}
    measured = [(key, value) for key, value in values.items() if isinstance(key, tuple)]
    events = []
    before = values.get(_PREVIOUS_SCALE, scale)
    if before != scale:
        events.append(wire.Event(step=step, kind="scale_changed", detail={"from": before, "to": scale}))
    found = [(optimizer, value) for (what, optimizer, _), value in measured if what == FOUND_INF]
    if found:
        skips = sorted({optimizer for optimizer, value in found if value})
        scalars["skipped"] = float(bool(skips))
        events += [wire.Event(step=step, kind="skipped", detail={"optimizer": o, "scale": scale}) for o in skips]
    clips = [value for (what, _, _), value in measured if what == CLIP]
    if clips:
        # NaN when a norm was; with min() that would depend on the order.
        scalars["clip_coef"] = float(np.min(clips))
    # What the user calls by the same name stays the user's; ours is to be found beside it.
    return {f"floatscope/{name}" if name in given else name: value for name, value in scalars.items()} | given, events


def _norm(statistics: Floats, carried: Floats) -> float:
    """Norm of all gradients, unscaled: NaN or inf when one of their elements is, as torch's own would be."""
    _, nans, infs, _, sumsq, _, _ = statistics.T
    if nans.any():
        return math.nan
    if infs.any():
        return math.inf
    return math.sqrt(float((sumsq / carried / carried).sum()))


def _summary_rows(
    kind: str, parts: list[_Facts], statistics: Floats, hists: Counts | None, carried: Floats, coming: Floats
) -> SummaryRows:
    """Rows merged by layer. ``carried`` is the factor in a part's tensor, ``coming`` the one at its cast."""
    layers, first, group = np.unique([part.layer for part in parts], return_index=True, return_inverse=True)
    count = np.zeros(len(layers), dtype=np.int64)
    np.add.at(count, group, [part.elements for part in parts])
    sums = np.zeros((len(layers), ADDING))
    np.add.at(sums, group, statistics[:, :ADDING])
    extremes = np.tile([0.0, -float(INFINITY_BITS)], (len(layers), 1))
    np.maximum.at(extremes, group, statistics[:, ADDING:])
    absmax, absmin = magnitude_of_bits(extremes[:, 0]), magnitude_of_bits(-extremes[:, 1])
    carried, coming = carried[first], coming[first]
    fields: dict[str, NDArray[np.generic]] = {
        "count": count,
        "zeros": sums[:, 0].astype(np.int64),
        "nans": sums[:, 1].astype(np.int64),
        "infs": sums[:, 2].astype(np.int64),
        "absmax": (absmax / carried).astype(np.float32),
        "absmin": (absmin / carried).astype(np.float32),
        "sum": sums[:, 3] / carried,
        "sumsq": sums[:, 4] / carried / carried,
        "scale": np.where(np.isnan(coming), _missing(len(layers)), (coming * carried).astype(np.float32)),
    }
    names = ("under", "over_low", "over_high", "floor")
    if hists is None:
        fields |= {name: _missing(len(layers)) for name in names}
        return SummaryRows(kind=kind, layers=layers.astype(np.uint32), fields=fields)
    hist = np.zeros((len(layers), BINS), dtype=np.int64)
    np.add.at(hist, group, hists)
    planes = _shares(hist, absmin, absmax, coming, [parts[i].format for i in first])
    fields |= dict(zip(names, planes, strict=True))
    return SummaryRows(
        kind=kind, layers=layers.astype(np.uint32), fields=fields, hist=rescaled_histogram(hist, carried)
    )


def _missing(length: int) -> NDArray[np.float32]:
    return np.full(length, wire.MISSING_BITS, dtype=np.uint32).view(np.float32)


def _shares(hist: Counts, absmin: Floats, absmax: Floats, scale: Floats, names: list[str]) -> list[NDArray[np.float32]]:
    """under, over_low, over_high and floor of each row at its format and scale; missing without non-zero elements.

    floor is the share that lands on one of the three smallest magnitudes of the format, its two lowest octaves.
    """
    limits = [formats[name] for name in names]
    usable = np.where((scale > 0) & np.isfinite(scale), scale, np.nan)
    zero, largest, lowest = (
        np.array(values) / usable
        for values in (
            [f.zero_at_or_below for f in limits],
            [f.max for f in limits],
            [3 * f.min_subnormal for f in limits],
        )
    )
    under, fits, near = (count_at_or_below(hist, t, absmin, absmax) for t in (zero, largest, lowest))
    total = hist.sum(axis=1)
    known = (total > 0) & ~np.isnan(usable)
    planes = []
    for elements in (under.estimate, total - fits.high, total - fits.low, near.estimate - under.estimate):
        plane = _missing(len(total))
        plane[known] = elements[known] / total[known]
        planes.append(plane)
    return planes
