"""Learning rates of the two demo runs: the same warm-up, to a sensible peak and to a thousand times that."""

from __future__ import annotations

import math

__all__ = ["SCHEDULES", "learning_rate"]

SCHEDULES = {"sane": 1e-3, "hot": 1.0}
"""Name to peak learning rate of AdamW."""

_WARMUP_STEPS = 60
_WARMUP_DECADES = 3


def learning_rate(schedule: str, step: int) -> float:
    """Geometric warm-up over three decades in 60 steps, then constant; ``step`` counts from 0."""
    left = max(0.0, 1.0 - step / _WARMUP_STEPS)
    return SCHEDULES[schedule] * math.pow(10.0, -_WARMUP_DECADES * left)
