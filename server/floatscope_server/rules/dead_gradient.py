"""A layer that learnt once and gets no gradient any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.tensors import Bool, Index, Rows

__all__ = ["DeadGradient", "Lives", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGradient:
    """Layers that are zero from the start (frozen ones, LoRA's A beside a B of zero) never count."""

    steps: int = 50
    """Steps in which every element was zero each time it was read: warning."""
    group_steps: int = 50
    """Layers that die within this many steps of the first are one alert, led by that one."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 0
    """Steps without it before the alert resolves."""


class Lives:
    """By layer: whether its gradient was ever other than zero, and the step since which it is zero, -1 while not."""

    def __init__(self, layers: int) -> None:
        self.lived = np.zeros(layers, np.bool_)
        self.zero_since = np.full(layers, -1, np.int64)

    def grow(self, layers: int) -> None:
        """Make room for ``layers`` layers."""
        more = Lives(max(layers - len(self.lived), 0))
        self.lived = np.concatenate([self.lived, more.lived])
        self.zero_since = np.concatenate([self.zero_since, more.zero_since])


def judge(rule: DeadGradient, rows: Rows, lives: Lives, step: int) -> tuple[Bool, Index]:
    """Which rows of gradients are dead, and since when; the step becomes part of ``lives``."""
    zero = rows.observed & (rows.amax == 0) & ~rows.nonfinite
    alive = rows.observed & ~zero
    lives.lived[rows.layers[alive]] = True
    lives.zero_since[rows.layers[alive]] = -1
    begins = rows.layers[zero]
    lives.zero_since[begins] = np.where(lives.zero_since[begins] < 0, step, lives.zero_since[begins])
    since = lives.zero_since[rows.layers]
    return zero & lives.lived[rows.layers] & (step - since >= rule.steps), since
