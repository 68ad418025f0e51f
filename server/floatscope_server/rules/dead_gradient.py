"""A layer that learnt once and gets no gradient any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from floatscope_server.rules.spans import Span
from floatscope_server.rules.tensors import Bool, Index, Rows

__all__ = ["DeadGradient", "Lives", "calm", "judge"]


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


def calm(rule: DeadGradient, span: Span, lives: Lives) -> Callable[[], None] | None:
    """How a span without non-finite values becomes part of ``lives``; None where a gradient may be dead in it."""
    zero = span.observed & ((span.amax if span.has("scale") else span.raw("absmax")) == 0)
    alive = span.observed & ~zero
    ever = alive.any(axis=0)
    hit = np.flatnonzero(zero.any(axis=0))
    since = np.full(len(span.layers), -1, np.int64)
    if len(hit):
        zero, alive = zero[:, hit], alive[:, hit]
        before = lives.zero_since[span.layers[hit]]
        begun = np.where(before < 0, span.steps[zero.argmax(axis=0)], before)
        last = span.steps[len(span.steps) - 1 - zero[::-1].argmax(axis=0)]
        if ((last - begun >= rule.steps) & (lives.lived[span.layers[hit]] | ever[hit])).any():
            return None
        # Zeros after the last step on which it was not.
        still = zero & ~np.logical_or.accumulate(alive[::-1], axis=0)[::-1]
        first = np.where(still.any(axis=0), span.steps[still.argmax(axis=0)], -1)
        since[hit] = np.where(ever[hit] | (before < 0), first, before)

    def push() -> None:
        lives.lived[span.layers[ever]] = True
        changed = ever | (since >= 0)
        lives.zero_since[span.layers[changed]] = since[changed]

    return push
