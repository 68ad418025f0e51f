"""Learning rates of the two demo runs: the same warm-up, to a sensible peak and to ten thousand times that."""

from __future__ import annotations

import math

__all__ = ["SCHEDULES", "learning_rate"]

SCHEDULES = {"sane": 1e-4, "hot": 1.0}
"""Name to peak learning rate of AdamW.

At 1e-3 and 3e-4 the gradient norm jumped to 7 and 8 times its median with one build of torch or another, which is an
alert; at 1e-4 it stayed below 3 times with two builds and two seeds, in 250 steps.
"""

_WARMUP_STEPS = 60
_WARMUP_DECADES = 3


def learning_rate(schedule: str, step: int) -> float:
    """Geometric warm-up over three decades in 60 steps, then constant; ``step`` counts from 0."""
    left = max(0.0, 1.0 - step / _WARMUP_STEPS)
    return SCHEDULES[schedule] * math.pow(10.0, -_WARMUP_DECADES * left)
