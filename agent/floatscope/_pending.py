"""A finished step on its way to the host, and the arithmetic that turns its rows into a record.

The training thread only starts the copies. Everything that needs the numbers (unscaling, merging the parameters of a
layer, shares of underflow and overflow) happens in ``resolve``, on the sender's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope import wire
from floatscope._device_rows import FromAmax, Part, Scalar, Slot
from floatscope._operands import scale_from_amax
from floatscope._packing import yield_the_interpreter
from floatscope._record import StepRecord, SummaryRows
from floatscope._stats import RowValues, WordAt
from floatscope._step_buffer import FIRST_SCALER, Clipping, StepBuffer
from floatscope._summary import BINS, Floats, rescaled_histogram, shares_in_format
from floatscope._transit import Arrival

__all__ = ["Pending", "ScaleTrace"]

SWALLOWED = "swallowed"
CLIP, CLIPPED, FOUND_INF, NONFINITE, FRAMEWORK = "clip", "clipped", "found_inf", "nonfinite", "framework"


@dataclass(frozen=True, slots=True)
class _Given:
    """A scalar of the user's, by its name."""

    name: str


_Key = str | _Given | tuple[str, int, int]
"""A scalar of ours by its name, one of the user's, or something else that was measured in the step: what, of which
optimizer or device, number."""
_Values = dict[_Key, float]


class ScaleTrace:
    """The loss scales of the last step that was read, which the next one is compared with. One thread's."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def changed(self, scales: Mapping[int, float]) -> dict[int, float]:
        """Of those in ``scales`` that are others now what they were before, by the number of the scaler."""
        before = {n: self._last[n] for n, scale in scales.items() if n in self._last and self._last[n] != scale}
        self._last.update(scales)
        return before


class Pending:
    """A ``PendingRecord`` of a step that ``Recorder.send`` has sent off."""

    def __init__(
        self,
        buffer: StepBuffer,
        *,
        scales: ScaleTrace,
        events: tuple[wire.Event, ...],
        layers: tuple[wire.Layer, ...],
        refuse_scale: Callable[[int, str, str], None],
        name_of: Callable[[int], str],
    ) -> None:
        self._name_of = name_of
        self._refuse_scale = refuse_scale
        self._scales = scales
        self.step = buffer.step
        self.layers = layers
        self._buffer = buffer
        self._parts = buffer.parts
        self._transits = buffer.transits
        self._events = events
        parts = sum(len(parts) for parts in self._parts.values())
        self.nbytes = 512 + 200 * parts + sum(transit.nbytes for transit in self._transits.values())

    def ready(self) -> bool:
        """Whether every copy has arrived, and the card has passed every event."""
        phases = self._buffer.phases
        return all(transit.ready() for transit in self._transits.values()) and (phases is None or phases.ready())

    def resolve(self) -> StepRecord:
        """The record; waits for the copies."""
        arrived = {device: transit.resolve() for device, transit in self._transits.items()}
        values = {key: _number(value, arrived) for key, value in _values(self._buffer).items()}
        if self._buffer.phases is not None:
            values.update({f"phase/{name}_s": spent for name, spent in self._buffer.phases.seconds().items()})
        loss_scales = {number: values[_scale_name(number)] for number in self._buffer.loss_scales}
        divisors = {number: scale for number, scale in loss_scales.items() if 0 < scale < math.inf}
        parts, rows = _written(self._parts, arrived)
        carried = np.array([divisors.get(part.loss_scaled, 1.0) for part in parts])
        scales = [_cast_scale(part, amax, arrived) for part, amax in zip(parts, rows.absmax.tolist(), strict=True)]
        coming = np.array([self._coming(part, scale) for part, scale in zip(parts, scales, strict=True)])
        summaries = []
        for kind, placement in dict.fromkeys((part.kind, part.placement) for part in parts):
            of_kind = np.array([i for i, p in enumerate(parts) if (p.kind, p.placement) == (kind, placement)])
            if kind == SWALLOWED:
                layers = [parts[i].layer for i in of_kind]
                shares = _shares_of_zero(layers, _rows_at(rows, of_kind))
                values.update({f"{SWALLOWED}/{self._name_of(layer)}": share for layer, share in shares.items()})
                continue
            some = [parts[i] for i in of_kind]
            summaries.append(_summary_rows(kind, some, _rows_at(rows, of_kind), carried[of_kind], coming[of_kind]))
            yield_the_interpreter()
        in_norm = np.array([i for i, part in enumerate(parts) if part.kind == "grad" and part.in_norm], dtype=np.intp)
        gradients = int(rows.word(WordAt.TENSORS)[in_norm].sum())
        norm = self._buffer.norm
        if norm and len(in_norm):
            # The norm of a shard is not that of the model; the sums of squares of all ranks give that one.
            share = norm == "grad_sumsq_share"
            if share:
                in_norm = in_norm[[parts[i].placement.counts for i in in_norm]]
            sumsq = _sumsq(_rows_at(rows, in_norm), carried[in_norm])
            values[norm] = sumsq if share else math.sqrt(sumsq)
        scaling = _Scaling(loss_scales, self._scales.changed(loss_scales), self._buffer.scaler_of)
        scalars, events = _conclusions(self.step, values, scaling, gradients, self._buffer.clipping)
        rows_lost = self._rows_lost()
        return StepRecord(
            step=self.step,
            scalars=scalars,
            summaries=tuple(summaries),
            events=(*self._events, *rows_lost, *events),
            layers=self.layers,
            spare_histograms=self._buffer.wanted.spare,
            everything=self._buffer.wanted.everything and not rows_lost,
        )

    def _rows_lost(self) -> list[wire.Event]:
        lost = {transit.lost for transit in self._transits.values() if transit.lost is not None}
        return [wire.Event(step=self.step, kind="rows_lost", detail={"reason": reason}) for reason in sorted(lost)]

    def _coming(self, part: Part, scale: float) -> float:
        # An infinite scale is reported: it comes of an all-zero tensor, and the cast gives NaN.
        if scale > 0:
            return scale
        self._refuse_scale(part.layer, part.kind, f"it is {scale:g}")
        return math.nan


def _number(value: Scalar, arrived: dict[torch.device, Arrival]) -> float:
    return float(arrived[value.device].numbers[value.place]) if isinstance(value, Slot) else value


def _cast_scale(part: Part, amax: float, arrived: dict[torch.device, Arrival]) -> float:
    if isinstance(part.cast_scale, FromAmax):
        return scale_from_amax(part.format, amax, power_of_two=part.cast_scale.power_of_two)
    return _number(part.cast_scale, arrived)


def _written(
    parts: Mapping[torch.device, Sequence[Part]], arrived: dict[torch.device, Arrival]
) -> tuple[list[Part], RowValues]:
    """Parts into whose rows anything was measured, in order, and those rows."""
    known: list[Part] = []
    words: list[NDArray[np.int64]] = []
    hists: list[NDArray[np.uint32]] = []
    for device, of_device in parts.items():
        rows = arrived[device].rows
        written = [part for part in of_device if rows.words[part.row, WordAt.TENSORS]]
        at = [part.row for part in written]
        known += written
        words.append(rows.words[at])
        if rows.hist is not None:
            hists.append(rows.hist[at])
    if not words:
        return known, RowValues(np.empty((0, WordAt.TENSORS + 1), dtype=np.int64), None)
    return known, RowValues(np.concatenate(words), np.concatenate(hists) if len(hists) == len(words) else None)


def _rows_at(rows: RowValues, at: NDArray[np.intp]) -> RowValues:
    return RowValues(rows.words[at], None if rows.hist is None else rows.hist[at])


def _values(buffer: StepBuffer) -> dict[_Key, Scalar]:
    values: dict[_Key, Scalar] = {_Given(name): value for name, value in buffer.scalars.items()}
    values.update(buffer.own)
    values.update({_scale_name(number): scale for number, scale in buffer.loss_scales.items()})
    values.update({(NONFINITE, i, 0): count for i, count in enumerate(buffer.raw_loss_nonfinite.values())})
    for optimizer, found in buffer.found_inf.items():
        values.update({(FOUND_INF, optimizer, i): flag for i, flag in enumerate(found)})
    if buffer.framework_norm is not None:
        values[FRAMEWORK, buffer.framework_norm_scaled, buffer.framework_norm_of] = buffer.framework_norm
    if (last := buffer.clipping) is not None:
        values[CLIPPED, last.scaled, last.of] = last.norm
    values.update({(CLIP, i, 0): coefficient for i, coefficient in enumerate(buffer.clip_coefficients.values())})
    return values


class _Scaling(NamedTuple):
    """The loss scales of a step by the number of their scalers, those of them that have changed as they were before,
    and which optimizers do not belong to the first scaler."""

    scales: dict[int, float]
    before: dict[int, float]
    scaler_of: dict[int, int]

    def of_optimizer(self, optimizer: int) -> float:
        """The scale by which its gradients were scaled."""
        return self.scales.get(self.scaler_of.get(optimizer, FIRST_SCALER), 1.0)


def _clipped(norm: float, limit: float) -> float:
    """What ``torch.nn.utils.clip_grads_with_norm_`` leaves of a 2-norm: NaN of an infinite one, multiplied by 0."""
    coefficient = limit / (norm + 1e-6)
    return norm if coefficient >= 1 else norm * coefficient


def _scale_name(number: int) -> str:
    return "loss_scale" if number == FIRST_SCALER else f"loss_scale/{number - FIRST_SCALER}"


def _conclusions(
    step: int, values: _Values, scaling: _Scaling, gradients: int, clipping: Clipping | None
) -> tuple[dict[str, float], list[wire.Event]]:
    """The scalars of the step and the events that follow from its numbers. ``gradients`` were read in it;
    ``clipping`` is the last one."""
    scalars = {key: value for key, value in values.items() if isinstance(key, str)}
    given = {key.name: value for key, value in values.items() if isinstance(key, _Given)}
    measured = [(key, value) for key, value in values.items() if isinstance(key, tuple)]
    events = []
    for number, before in scaling.before.items():
        detail: dict[str, str | int | float | bool | None] = {"from": before, "to": scaling.scales[number]}
        if number > FIRST_SCALER:
            detail["scaler"] = number - FIRST_SCALER
        events.append(wire.Event(step=step, kind="scale_changed", detail=detail))
    found = [(optimizer, value) for (what, optimizer, _), value in measured if what == FOUND_INF]
    if found:
        skips = sorted({optimizer for optimizer, value in found if value})
        scalars["skipped"] = float(bool(skips))
        if skips:
            # A fused optimizer that was called and did nothing has swallowed nothing.
            scalars = {name: value for name, value in scalars.items() if not name.startswith(f"{SWALLOWED}/")}
        events += [
            wire.Event(step=step, kind="skipped", detail={"optimizer": o, "scale": scaling.of_optimizer(o)})
            for o in skips
        ]
    clips = [value for (what, _, _), value in measured if what == CLIP]
    if clips:
        # NaN when a norm was; with min() that would depend on the order.
        scalars["clip_coef"] = float(np.min(clips))
    for (what, scaled, compared), value in measured:
        # Of gradients that are clipped in parts there is no norm of all.
        if what == FRAMEWORK and compared == gradients:
            scale = scaling.scales.get(scaled, 1.0)
            carried = scale if 0 < scale < math.inf else 1.0
            scalars["grad_norm/framework"] = value / carried
        if what == CLIPPED and compared == gradients and clipping is not None and clipping.smallest < math.inf:
            scale = scaling.scales.get(scaled, 1.0)
            carried = scale if 0 < scale < math.inf else 1.0
            scalars["clip_norm"] = clipping.smallest / carried
            scalars["grad_norm/clipped"] = _clipped(value, clipping.limit) / carried
    nonfinite = [value for (what, _, _), value in measured if what == NONFINITE]
    if nonfinite:
        scalars["raw_loss_nonfinite"] = sum(nonfinite)
    # What the user calls by the same name stays the user's; ours is to be found beside it.
    return {f"floatscope/{name}" if name in given else name: value for name, value in scalars.items()} | given, events


def _shares_of_zero(layers: list[int], rows: RowValues) -> dict[int, float]:
    """By layer, the share of zeros among what is a number; layers without any are left out."""
    unique, group = np.unique(layers, return_inverse=True)
    zeros = _added(group, len(unique), rows.word(WordAt.ZEROS))
    counted = _added(group, len(unique), rows.word(WordAt.ELEMENTS) - rows.word(WordAt.NANS))
    return {
        int(layer): int(zero) / int(count) for layer, zero, count in zip(unique, zeros, counted, strict=True) if count
    }


def _sumsq(rows: RowValues, carried: Floats) -> float:
    """Sum of squares of all gradients, unscaled: NaN or inf when one of their elements is, as torch's norm would be."""
    if rows.word(WordAt.NANS).any():
        return math.nan
    if rows.word(WordAt.INFS).any():
        return math.inf
    return float((rows.sumsq / carried / carried).sum())


def _summary_rows(kind: str, parts: list[Part], rows: RowValues, carried: Floats, coming: Floats) -> SummaryRows:
    """Rows merged by layer, all of one placement. ``carried`` is the factor in a part's tensors, ``coming`` the one at
    their cast."""
    placement = parts[0].placement
    layers, first, group = np.unique([part.layer for part in parts], return_index=True, return_inverse=True)
    # Rows of a layer that carry another factor than its first one: 1 everywhere, as a rule.
    ratio = carried / carried[first][group]
    carried, coming = carried[first], coming[first]
    count, zeros, nans, infs = (
        _added(group, len(layers), rows.word(place))
        for place in (WordAt.ELEMENTS, WordAt.ZEROS, WordAt.NANS, WordAt.INFS)
    )
    total, squares = np.zeros(len(layers)), np.zeros(len(layers))
    np.add.at(total, group, rows.sum / ratio)
    np.add.at(squares, group, rows.sumsq / ratio / ratio)
    absmax, absmin = np.zeros(len(layers)), np.full(len(layers), np.inf)
    np.maximum.at(absmax, group, rows.absmax / ratio)
    np.minimum.at(absmin, group, rows.absmin / ratio)
    fields: dict[str, NDArray[np.generic]] = {
        "count": count,
        "zeros": zeros,
        "nans": nans,
        "infs": infs,
        "absmax": (absmax / carried).astype(np.float32),
        "absmin": (absmin / carried).astype(np.float32),
        "sum": total / carried,
        "sumsq": squares / carried / carried,
        "scale": np.where(np.isnan(coming), _missing(len(layers)), (coming * carried).astype(np.float32)),
    }
    names = ("under", "over_low", "over_high", "floor")
    if rows.hist is None:
        fields |= {name: _missing(len(layers)) for name in names}
        return SummaryRows(
            kind=kind,
            layers=layers.astype(np.uint32),
            fields=fields,
            placement=placement.kind,
            copy_of=placement.copy_of,
        )
    hist = _merged(rescaled_histogram(rows.hist.astype(np.int64), ratio), first, group)
    shares = shares_in_format(hist, absmin, absmax, coming, [parts[i].format for i in first])
    for name in names:
        share: NDArray[np.float64] = getattr(shares, name)
        fields[name] = np.where(np.isnan(share), _missing(len(layers)), share.astype(np.float32))
    return SummaryRows(
        kind=kind,
        layers=layers.astype(np.uint32),
        fields=fields,
        hist=rescaled_histogram(hist, carried),
        placement=placement.kind,
        copy_of=placement.copy_of,
    )


def _added(group: NDArray[np.intp], groups: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total


def _merged(hist: NDArray[np.int64], first: NDArray[np.intp], group: NDArray[np.intp]) -> NDArray[np.int64]:
    """Histograms [P, 512] of parts added up by layer, ``first`` being the first part of each."""
    if len(first) == len(group):
        return hist[first]  # a part each, as a rule; np.add.at takes ten times as long and keeps the interpreter
    total = np.zeros((len(first), BINS), dtype=np.int64)
    np.add.at(total, group, hist)
    return total


def _missing(length: int) -> NDArray[np.float32]:
    return np.full(length, wire.MISSING_BITS, dtype=np.uint32).view(np.float32)
