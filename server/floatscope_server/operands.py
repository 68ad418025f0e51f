"""Which format a tensor of a layer meets, and whether its range can be judged."""

from __future__ import annotations

from floatscope import wire
from floatscope._formats import formats

__all__ = ["has_headroom", "has_judged_limit", "operand_of"]

_JUDGED_SCALINGS = frozenset({"none", "static", "delayed"})


def operand_of(layer: wire.Layer, kind: str) -> wire.Operand | None:
    """The operand of the layer's tensors of ``kind``; None where no known format is named."""
    return next((o for o in layer.operands if o.kind == kind and o.format in formats), None)


def has_judged_limit(operand: wire.Operand) -> bool:
    """Whether a crossed limit is a fault. A loss scaler probes the limit by design, and a current scale ("dynamic")
    fills the format by construction."""
    return operand.scaling in _JUDGED_SCALINGS


def has_headroom(operand: wire.Operand) -> bool:
    """Whether the distance to the limit says anything; under a current scale it does not."""
    return operand.scaling != "dynamic"
