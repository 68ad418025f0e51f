"""The scale of a coming cast: so large or so small that the product with it is not to be trusted, or amax gone to 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.spans import Span
from floatscope_server.rules.tensors import Bool, Operands, Rows

__all__ = ["Extremes", "ScaleExtreme", "ScaleState", "calm", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleExtreme:
    """FP8 failures are often an amax that underflowed: 57344 / 1e-12 is a scale of 2^55."""

    highest: float = 2.0**40
    """Scales above this: warning."""
    lowest: float = 2.0**-40
    """Scales below this: warning."""
    critical_steps: int = 20
    """Something non-finite within this many steps after it: critical."""
    group_steps: int = 20
    """Layers whose scales leave the range within this many steps of the first are one alert, led by that one."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 50
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """Masks over the rows of one kind and step. ``outside``: the scale left the range. ``vanished``: amax is 0 in a
    tensor that had values. ``followed``: something not finite followed either. ``judged``: there is a cast to come."""

    judged: Bool
    outside: Bool
    vanished: Bool
    followed: Bool


class Extremes:
    """By layer of one kind: whether its tensor had values once, and the last step at which its scale was extreme."""

    def __init__(self, layers: int) -> None:
        self.had_values = np.zeros(layers, np.bool_)
        self.extreme_at = np.full(layers, np.iinfo(np.int64).min // 2)

    def grow(self, layers: int) -> None:
        """Make room for ``layers`` layers."""
        more = Extremes(max(layers - len(self.had_values), 0))
        self.had_values = np.concatenate([self.had_values, more.had_values])
        self.extreme_at = np.concatenate([self.extreme_at, more.extreme_at])


def judge(
    rule: ScaleExtreme, operands: Operands, rows: Rows, past: Extremes, step: int, *, nonfinite: bool
) -> ScaleState:
    """The state of every row, which becomes part of ``past``. ``nonfinite``: this step has a NaN or an infinity beyond
    the ordinary. A scale that is not finite is a crossed limit and no matter of this rule."""
    layers = rows.layers
    judged = rows.observed & operands.cast[layers] & operands.scaled[layers]
    with np.errstate(invalid="ignore"):
        outside = judged & np.isfinite(rows.scale) & ((rows.scale > rule.highest) | (rows.scale < rule.lowest))
    vanished = judged & (rows.amax == 0) & ~rows.nonfinite & past.had_values[layers]
    recent = step - past.extreme_at[layers] <= rule.critical_steps
    now = outside | vanished
    past.extreme_at[layers[now]] = step
    past.had_values[layers[judged & (rows.amax > 0)]] = True
    return ScaleState(judged=judged, outside=outside, vanished=vanished, followed=judged & (now | recent) & nonfinite)


def calm(rule: ScaleExtreme, operands: Operands, span: Span, past: Extremes) -> Callable[[], None] | None:
    """How a span beside which all is finite becomes part of ``past``; None where a scale may be extreme in it."""
    layers = span.layers
    judged = span.observed & operands.cast[layers] & operands.scaled[layers]
    with np.errstate(invalid="ignore"):
        outside = np.isfinite(span.scale) & ((span.scale > rule.highest) | (span.scale < rule.lowest))
        positive = judged & (span.amax > 0)
    had_values = past.had_values[layers] | positive.any(axis=0)
    if (judged & (outside | ((span.amax == 0) & had_values))).any():
        return None

    def push() -> None:
        past.had_values[layers] = had_values

    return push
