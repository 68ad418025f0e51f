"""A run with as many layers as the largest models have."""

from __future__ import annotations

import numpy as np

from floatscope import wire
from tests.e2e.scaled_runs import tell
from tests.server.bodies import layer, scalars, summaries

__all__ = ["LAYERS", "PARTS", "SPIKE_LAYER", "SPIKE_STEP", "STEPS", "tell_many"]

LAYERS, STEPS = 5000, 32
BLOCK = 2
"""Steps that fit the bytes of a block."""
PARTS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down", "norm.1", "norm.2", "router")
SPIKE_LAYER, SPIKE_STEP = 3777, 21


def tell_many(address: str, run: str) -> None:
    """Gradients of every layer in every step; one of them is over its limit once."""
    names = [f"model.layers.{i // len(PARTS)}.{PARTS[i % len(PARTS)]}" for i in range(LAYERS)]
    table = [layer(i, name, ("grad", "fp16" if i % 2 else "e5m2")) for i, name in enumerate(names)]
    bodies = []
    for first in range(0, STEPS, BLOCK):
        absmax = np.ones((BLOCK, LAYERS), np.float32)
        if first <= SPIKE_STEP < first + BLOCK:
            absmax[SPIKE_STEP - first, SPIKE_LAYER] = 2.0**18
        parts = (summaries("grad", first, absmax),)
        bodies.append(
            wire.Body(first_step=first, steps=BLOCK, summaries=parts, scalars=(scalars("loss", first, [2.0] * BLOCK),))
        )
    tell(address, run, bodies, layers=table)
