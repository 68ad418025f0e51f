"""The range of the format that each tensor meets: near it, or beyond."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floatscope_server.frame import headroom_bits
from floatscope_server.rules.spans import Span
from floatscope_server.rules.tensors import F64, Bool, Index, Operands, Rows

__all__ = ["LimitState", "Limits", "Trend", "headroom_if_calm", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Element maxima only, times the scale at the cast. Loss-scaled and currently ("dynamic") scaled operands reach
    the limit by design, and fp32 and bf16 have no near."""

    near_bits: float = 1.0
    """Headroom below this many bits is near: log2(max / (amax x scale)); 28672 in E5M2, 120 in E4M3FNUZ."""
    trend_steps: int = 20
    """Observations from which the time to overflow is estimated."""
    group_steps: int = 20
    """Layers that reach a limit within this many steps of the first are one alert, led by that one."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """Masks over the rows of one kind and step; ``headroom`` in bits, NaN where no format is known.

    ``over``: a finite element is beyond the limit. ``broken``: not finite, where that counts as crossed. ``near``:
    below ``near_bits`` and neither of the two. ``judged``: something can be said at all.
    """

    judged: Bool
    over: Bool
    broken: Bool
    near: Bool
    headroom: F64


def judge(rule: Limits, operands: Operands, rows: Rows, routine: NDArray[np.bool_]) -> LimitState:
    """The state of every row; ``routine`` marks rows whose infinities are the layer's ordinary level (masks).

    A tensor stored in the format is at its limit when it equals the maximum, a coming cast above it. NaNs and
    infinities count whatever the finite maximum says: a saturating cast would erase them.
    """
    index = rows.layers
    top = operands.max[index]
    cast = operands.cast[index]
    measured = operands.limited[index] & rows.observed
    headroom = headroom_bits(rows.amax, operands.log2_max[index])
    beyond = np.where(cast, rows.amax > top, rows.amax >= top)
    # An infinite scale over an all-zero tensor makes amax x scale NaN; the cast then gives NaN.
    over = measured & (beyond | (~np.isfinite(rows.scale) & (rows.scale != 0)))
    broken = operands.crossable[index] & rows.nonfinite & ~(routine & (rows.nans == 0))
    near = measured & ~over & ~broken & (headroom < rule.near_bits)
    return LimitState(
        judged=(operands.crossable[index]) & rows.observed,
        over=over,
        broken=broken,
        near=near,
        headroom=headroom,
    )


def headroom_if_calm(rule: Limits, operands: Operands, span: Span) -> F64 | None:
    """The headroom of each cell of a span without non-finite values, [S, L]; None where ``judge`` might find a limit
    near or crossed."""
    headroom = headroom_bits(span.amax, operands.log2_max[span.layers])
    limited = operands.limited[span.layers]
    if limited.any():
        with np.errstate(invalid="ignore"):
            close = (headroom < rule.near_bits) | ~(span.amax < operands.max[span.layers])
        if (close & limited & span.observed).any():
            return None
    return headroom


class Trend:
    """The last headrooms of each layer of one kind, for the time to overflow."""

    def __init__(self, length: int, layers: int) -> None:
        self._bits = np.full((length, layers), np.nan)
        self._steps = np.zeros((length, layers), np.int64)
        self._next = np.zeros(layers, np.int64)

    def push(self, step: int, rows: Rows, headroom: F64) -> None:
        """Remember the finite headrooms of a step."""
        seen = rows.observed & np.isfinite(headroom)
        layers = rows.layers[seen]
        if len(layers) == 0:
            return
        slot = self._next[layers] % len(self._bits)
        self._bits[slot, layers] = headroom[seen]
        self._steps[slot, layers] = step
        self._next[layers] += 1

    def push_span(self, steps: Index, layers: Index, seen: Bool, headroom: F64) -> None:
        """``push`` of S steps: ``headroom`` [S, L] of ``layers`` [L], where it is ``seen`` [S, L]."""
        length = len(self._bits)
        if seen.all():
            first = max(len(steps) - length, 0)
            slots = (self._next[layers] + np.arange(first, len(steps))[:, None]) % length
            self._bits[slots, layers] = headroom[first:]
            self._steps[slots, layers] = steps[first:, None]
            self._next[layers] += len(steps)
            return
        place = np.cumsum(seen, axis=0)
        counts = place[-1]
        at, layer = np.nonzero(seen & (place > counts - length))
        slot = (self._next[layers[layer]] + place[at, layer] - 1) % length
        self._bits[slot, layers[layer]] = headroom[at, layer]
        self._steps[slot, layers[layer]] = steps[at]
        self._next[layers] += counts

    def grow(self, layers: int) -> None:
        """Make room for ``layers`` layers."""
        missing = layers - self._bits.shape[1]
        if missing > 0:
            length = len(self._bits)
            self._bits = np.concatenate([self._bits, np.full((length, missing), np.nan)], axis=1)
            self._steps = np.concatenate([self._steps, np.zeros((length, missing), np.int64)], axis=1)
            self._next = np.concatenate([self._next, np.zeros(missing, np.int64)])

    def steps_to_overflow(self, layer: int, headroom: float) -> float | None:
        """Steps until ``headroom`` bits are used up at the slope of the least-squares line through the remembered
        points; None without three points or without a fall."""
        known = ~np.isnan(self._bits[:, layer])
        if known.sum() < 3:
            return None
        steps = self._steps[known, layer].astype(np.float64)
        bits = self._bits[known, layer]
        steps -= steps.mean()
        spread = float((steps**2).sum())
        if spread == 0:
            return None
        slope = float((steps * (bits - bits.mean())).sum()) / spread
        return max(headroom, 0.0) / -slope if slope < 0 else None
