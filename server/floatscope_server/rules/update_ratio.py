"""How far an optimizer moves a layer, by its size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.tensors import F64, Bool, Index, Rows

__all__ = ["Moves", "UpdateRatio", "UpdateState", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRatio:
    """rms of the update over rms of the weight. A weight that starts at zero (LoRA's B) moves by its own size at
    first."""

    high: float = 1e-1
    """Ratios above this for ``high_steps``: warning."""
    high_steps: int = 10
    low: float = 1e-7
    """Ratios below this for ``low_steps``: info."""
    low_steps: int = 200
    startup_steps: int = 50
    """Steps of a layer, from the first on which its update was read, that do not count."""
    group_steps: int = 50
    """Layers that leave the range within this many steps of the first are one alert, led by that one."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 20
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateState:
    """Over the rows of a step's updates: the ratio (NaN where the weight is not known), the two masks, and since
    when."""

    ratio: F64
    high: Bool
    low: Bool
    since: Index


class Moves:
    """By layer: the rms of its weight as read last, and the steps since which its updates are large or small."""

    def __init__(self, layers: int) -> None:
        self.weight = np.full(layers, np.nan)
        self.first = np.full(layers, -1, np.int64)
        self.high_since = np.full(layers, -1, np.int64)
        self.low_since = np.full(layers, -1, np.int64)

    def copy(self) -> Moves:
        """One that moves on by itself."""
        other = Moves(0)
        for name in ("weight", "first", "high_since", "low_since"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def grow(self, layers: int) -> None:
        """Make room for ``layers`` layers."""
        more = Moves(max(layers - len(self.weight), 0))
        for name in ("weight", "first", "high_since", "low_since"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))


def judge(rule: UpdateRatio, weights: Rows | None, updates: Rows | None, moves: Moves, step: int) -> UpdateState | None:
    """The state of every row of ``updates``; the step becomes part of ``moves``. None without updates."""
    if weights is not None:
        seen = weights.observed & ~weights.nonfinite
        moves.weight[weights.layers[seen]] = weights.rms[seen]
    if updates is None:
        return None
    layers = updates.layers
    weight = moves.weight[layers]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(weight > 0, updates.rms / weight, np.nan)
    ratio[~updates.observed | updates.nonfinite] = np.nan
    known = ~np.isnan(ratio)
    fresh = known & (moves.first[layers] < 0)
    moves.first[layers[fresh]] = step
    counted = known & (step - moves.first[layers] >= rule.startup_steps)
    high, high_since = _lasting(moves.high_since, layers, counted & (ratio > rule.high), known, step, rule.high_steps)
    low, low_since = _lasting(moves.low_since, layers, counted & (ratio < rule.low), known, step, rule.low_steps)
    return UpdateState(ratio=ratio, high=high, low=low, since=np.where(high, high_since, low_since))


def _lasting(since: Index, layers: Index, holds: Bool, known: Bool, step: int, steps: int) -> tuple[Bool, Index]:
    """Where a condition has held for ``steps`` steps, and since when; ``since`` by layer is moved on."""
    ended = layers[known & ~holds]
    since[ended] = -1
    begun = layers[holds]
    since[begun] = np.where(since[begun] < 0, step, since[begun])
    here = since[layers]
    return holds & (step - here + 1 >= steps), here
