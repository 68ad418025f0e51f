"""Linear layers that multiply in 8 bits, with delayed scaling, as the FP8 recipes for MI300 do.

Both operands of the forward product are rounded to E4M3 FNUZ (largest value 240) and the gradient of the output to
E5M2 FNUZ (57344). The casts are real casts to ``torch.float8_*`` and nothing is clamped first, so a value that rounds
beyond the format becomes NaN. The product itself is computed in fp32, where FP8 values times a power of two are exact:
a CPU has no FP8 matrix instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import floatscope

__all__ = ["DelayedScale", "Fp8Linear", "roll_scales"]

_FORMAT_NAMES = {torch.float8_e4m3fnuz: "e4m3fnuz", torch.float8_e5m2fnuz: "e5m2fnuz"}


class DelayedScale:
    """Per-tensor scale that follows the largest absolute value (amax) of earlier steps.

    ``scale = 2 ** (floor(log2(max / amax)) - margin)``, the amax being the largest of the last ``history`` steps. It is
    1 in the first step, set after it, and then set again every ``interval`` steps. In between the tensor may grow by
    ``2 ** margin`` before it leaves the format.
    """

    def __init__(self, dtype: torch.dtype, *, margin: int, history: int = 32, interval: int = 16) -> None:
        self.format = _FORMAT_NAMES[dtype]
        self.scale = torch.ones(())
        self._dtype = dtype
        self._margin = margin
        self._interval = interval
        self._amax = torch.zeros(history)
        self._steps = 0

    def quantise(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` (fp32, any shape) as the format holds it at the current scale, in fp32; NaN where out of range."""
        low, high = torch.aminmax(tensor)
        amax = torch.maximum(-low, high)
        # An infinite or NaN amax says nothing about the range that the next steps need.
        amax = torch.where(torch.isfinite(amax), amax, 0.0)
        newest = self._amax[self._steps % len(self._amax)]
        torch.maximum(newest, amax, out=newest)
        return (tensor * self.scale).to(self._dtype).float() / self.scale

    def roll(self) -> None:
        """Take note that a step has ended."""
        self._steps += 1
        if self._steps == 1 or self._steps % self._interval == 0:
            amax = self._amax.max()
            exponent = torch.floor(torch.log2(torch.finfo(self._dtype).max / amax)) - self._margin
            self.scale = torch.where(amax > 0, torch.exp2(exponent), self.scale)
        self._amax[self._steps % len(self._amax)] = 0.0


class _Fp8Product(torch.autograd.Function):
    """``x @ weight.T`` of quantised operands; the backward pass quantises the gradient of the product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Fp8Linear) -> torch.Tensor:  # noqa: ANN401
        x, weight = layer.act_in_scale.quantise(x), layer.weight_scale.quantise(weight)
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        gradient = ctx.layer.act_grad_scale.quantise(gradients[0])
        return gradient @ weight, gradient.flatten(0, -2).T @ x.flatten(0, -2), None


class Fp8Linear(nn.Linear):
    """``nn.Linear`` whose operands are cast to FP8; its parameters stay in fp32.

    Input [..., in_features] fp32, output [..., out_features] fp32. Gradients vary more from step to step than
    activations, and E5M2 has the range for it: their margin is larger.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.act_in_scale = DelayedScale(torch.float8_e4m3fnuz, margin=2)
        self.weight_scale = DelayedScale(torch.float8_e4m3fnuz, margin=2)
        self.act_grad_scale = DelayedScale(torch.float8_e5m2fnuz, margin=8)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        product: torch.Tensor = _Fp8Product.apply(input, self.weight, self)  # type: ignore[no-untyped-call]
        return product + self.bias

    @property
    def scales(self) -> dict[str, DelayedScale]:
        return {"act_in": self.act_in_scale, "weight": self.weight_scale, "act_grad": self.act_grad_scale}

    def floatscope_operands(self) -> Mapping[str, floatscope.Operand]:
        """What this layer casts, to which format and at which scale; floatscope measures headroom against it."""
        return {
            kind: floatscope.Operand(format=delayed.format, scale=delayed.scale, scaling="delayed")
            for kind, delayed in self.scales.items()
        }


def roll_scales(model: nn.Module) -> None:
    """Between two optimizer steps: let the delayed scales of every FP8 layer follow what they have seen."""
    for module in model.modules():
        if isinstance(module, Fp8Linear):
            for delayed in module.scales.values():
                delayed.roll()
