"""Formats that the tensors of a layer meet: the ones they are stored in and the ones they are about to be cast to."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from floatscope import wire
from floatscope._formats import format_named

if TYPE_CHECKING:
    import torch

__all__ = ["CASTS", "CastsOperands", "ExposesExtremes", "Operand", "format_of", "scale_from_amax"]

CASTS = ("act_in", "weight", "act_grad")
"""Kinds that a layer can cast: its input, its weight and the gradient of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A cast that a module is about to make: to ``format``, after multiplication by ``scale``.

    ``scale`` is a number or a 0-d tensor on any device, which is copied and never waited for. ``scaling`` says where
    it comes from: "none", "static", "delayed" (from earlier steps) or "dynamic" (from this very tensor). A dynamic
    ``scale`` of None is the one that brings this tensor's amax to the format's max; with ``power_of_two``, the largest
    power of two that keeps it at or below. ``ValueError`` for an unknown format or scaling, a scale that is not one
    number, a number that is not positive and finite, and None where the scaling is not dynamic. The value of a tensor
    is not known yet: one that is zero, negative or NaN is left out of that reading.
    """

    format: str
    scale: float | torch.Tensor | None = 1.0
    scaling: str = "none"
    power_of_two: bool = False

    def __post_init__(self) -> None:
        format_named(self.format)
        if self.scaling not in wire.SCALINGS:
            raise ValueError(f"unknown scaling {self.scaling!r}; known are {', '.join(wire.SCALINGS)}")
        if self.scale is None:
            if self.scaling != "dynamic":
                raise ValueError(f"scale: None means from this tensor's amax, which is not {self.scaling!r} scaling")
        elif self.power_of_two:
            raise ValueError("power_of_two: it tells how a scale of None is made; this one is given")
        else:
            _check_scale(self.scale)


def scale_from_amax(format: str, amax: float, *, power_of_two: bool) -> float:  # noqa: A002 (the promised name)
    """The scale of a dynamic cast to ``format`` whose operand has none: ``format``'s max / ``amax``.

    1.0 for an amax of zero, of which any scale makes zeros.
    """
    if amax == 0:
        return 1.0
    scale = format_named(format).max / amax
    # frexp gives a mantissa in [0.5, 1): half of its power is the largest one at or below.
    return math.ldexp(0.5, math.frexp(scale)[1]) if power_of_two else scale


def _check_scale(scale: object) -> None:
    if isinstance(scale, numbers.Real):
        if not 0 < float(scale) < math.inf:
            raise ValueError(f"scale: expected a positive finite number, got {scale!r}")
        return
    # Only who holds a tensor has imported torch.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(scale, torch.Tensor):
        raise ValueError(f"scale: expected a number or a tensor of one element, got {type(scale).__name__}")
    if scale.numel() != 1 or scale.is_complex() or scale.device.type == "meta":
        shape = list(scale.shape)
        raise ValueError(
            f"scale: expected a tensor of one element, got {scale.dtype} of shape {shape} on {scale.device.type}; "
            "scales of rows, columns or blocks are not observed"
        )


@runtime_checkable
class CastsOperands(Protocol):
    """A module that casts its operands, in the manner of FP8 linear layers.

    ``floatscope_operands`` maps the kinds "act_in", "weight" and "act_grad" to the cast that comes next: it is called
    right before a forward pass for the first two and right before the backward pass of the output for the third.
    """

    def floatscope_operands(self) -> Mapping[str, Operand]:
        """The casts to come, by kind."""


@runtime_checkable
class ExposesExtremes(Protocol):
    """A module that knows how far values went which no hook sees, as the logits inside a fused attention.

    ``floatscope_extremes`` maps a name ("attention_logits", say) to the largest magnitude of the forward pass that has
    just ended, a tensor of one element on any device. It is called after such passes of a training step as are
    observed, and must neither wait for the device nor change anything.
    """

    def floatscope_extremes(self) -> Mapping[str, torch.Tensor]:
        """The largest magnitudes, by name."""


_FORMATS = {
    "torch.float64": "fp32",  # counted through its float32 value
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float8_e4m3fn": "e4m3fn",
    "torch.float8_e4m3fnuz": "e4m3fnuz",
    "torch.float8_e5m2": "e5m2",
    "torch.float8_e5m2fnuz": "e5m2fnuz",
}


def format_of(dtype: torch.dtype) -> str | None:
    """Name of the format that ``dtype`` stores; None for a dtype that is not observed."""
    return _FORMATS.get(str(dtype))
