"""The parameters of all rules, and what each rule is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from floatscope_server.rules.grad_norm_spike import GradNormSpike
from floatscope_server.rules.limits import Limits
from floatscope_server.rules.loss_scale import LossScaleCollapse
from floatscope_server.rules.loss_spike import LossSpike
from floatscope_server.rules.loss_zero import LossZero
from floatscope_server.rules.nonfinite import Nonfinite
from floatscope_server.rules.underflow import Underflow

__all__ = ["RULES", "RuleParameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleParameters:
    """One set of parameters; the defaults are those of the documentation."""

    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    loss_zero: LossZero = field(default_factory=LossZero)
    loss_spike: LossSpike = field(default_factory=LossSpike)
    grad_norm_spike: GradNormSpike = field(default_factory=GradNormSpike)
    loss_scale_collapse: LossScaleCollapse = field(default_factory=LossScaleCollapse)
    limits: Limits = field(default_factory=Limits)
    underflow: Underflow = field(default_factory=Underflow)


RULES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "nonfinite": (
            "nonfinite",
            "NaN or infinity in the loss, the gradient norm or the gradients, with the layer it came from",
            "损失、梯度范数或梯度中出现 NaN 或无穷大，并指出其来源层",
        ),
        "loss_zero": (
            "loss_zero",
            "a loss of exactly 0.0, the usual mask of a NaN",
            "损失恰好为 0.0，通常是被掩盖的 NaN",
        ),
        "loss_spike": ("loss_spike", "a loss far above its recent median", "损失远高于近期中位数"),
        "grad_norm_spike": (
            "grad_norm_spike",
            "a gradient norm far above its recent median",
            "梯度范数远高于近期中位数",
        ),
        "loss_scale_collapse": (
            "loss_scale_collapse",
            "a loss scaler that skips step after step",
            "损失缩放器连续跳过优化步",
        ),
        "limit_near": (
            "limits",
            "less than a bit of headroom before the maximum of the operand's format",
            "距离操作数格式最大值的余量不足一位",
        ),
        "limit_crossed": (
            "limits",
            "a value beyond the range of the operand's format",
            "数值超出操作数格式的表示范围",
        ),
        "underflow": ("underflow", "values that round to zero in the operand's format", "数值在操作数格式中舍入为零"),
    }
)
"""Alert kind -> (field of RuleParameters that holds its parameters, what it fires on in English, in Chinese)."""
