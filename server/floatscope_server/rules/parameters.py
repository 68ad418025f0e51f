"""The parameters of all rules, and what each rule is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from floatscope_server.rules.clip_saturation import ClipSaturation
from floatscope_server.rules.dead_gradient import DeadGradient
from floatscope_server.rules.frozen import Frozen
from floatscope_server.rules.grad_norm_spike import GradNormSpike
from floatscope_server.rules.limits import Limits
from floatscope_server.rules.loss_divergence import LossDivergence
from floatscope_server.rules.loss_plateau import LossPlateau
from floatscope_server.rules.loss_scale import LossScaleCollapse
from floatscope_server.rules.loss_spike import LossSpike
from floatscope_server.rules.loss_zero import LossZero
from floatscope_server.rules.nonfinite import Nonfinite
from floatscope_server.rules.precision import FormatMismatch, PrecisionMismatch
from floatscope_server.rules.scale_extreme import ScaleExtreme
from floatscope_server.rules.stalled import Stalled
from floatscope_server.rules.telemetry import CoverageLow, DataGap, GpuFault
from floatscope_server.rules.tempo import Straggler, ThroughputDrop
from floatscope_server.rules.underflow import Underflow
from floatscope_server.rules.update_ratio import UpdateRatio
from floatscope_server.rules.utilisation import GpuImbalance, GpuUtilDrop
from floatscope_server.rules.vram import VramJitter, VramLeak, VramNearOom

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
    loss_divergence: LossDivergence = field(default_factory=LossDivergence)
    loss_plateau: LossPlateau = field(default_factory=LossPlateau)
    grad_norm_frozen: Frozen = field(default_factory=Frozen)
    stale_grad_norm: Frozen = field(default_factory=Frozen)
    lr_frozen: Frozen = field(default_factory=Frozen)
    scale_extreme: ScaleExtreme = field(default_factory=ScaleExtreme)
    dead_gradient: DeadGradient = field(default_factory=DeadGradient)
    update_ratio: UpdateRatio = field(default_factory=UpdateRatio)
    precision_mismatch: PrecisionMismatch = field(default_factory=PrecisionMismatch)
    format_mismatch: FormatMismatch = field(default_factory=FormatMismatch)
    clip_saturation: ClipSaturation = field(default_factory=ClipSaturation)
    stalled: Stalled = field(default_factory=Stalled)
    straggler: Straggler = field(default_factory=Straggler)
    throughput_drop: ThroughputDrop = field(default_factory=ThroughputDrop)
    vram_near_oom: VramNearOom = field(default_factory=VramNearOom)
    vram_leak: VramLeak = field(default_factory=VramLeak)
    vram_jitter: VramJitter = field(default_factory=VramJitter)
    gpu_util_drop: GpuUtilDrop = field(default_factory=GpuUtilDrop)
    gpu_imbalance: GpuImbalance = field(default_factory=GpuImbalance)
    gpu_fault: GpuFault = field(default_factory=GpuFault)
    data_gap: DataGap = field(default_factory=DataGap)
    coverage_low: CoverageLow = field(default_factory=CoverageLow)
    off: frozenset[str] = frozenset()
    """The rules, by their fields here, that raise no alert."""

    @property
    def off_kinds(self) -> frozenset[str]:
        """The kinds of alerts that are not raised."""
        return frozenset(kind for kind, (rule, _, _) in RULES.items() if rule in self.off)


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
        "loss_divergence": (
            "loss_divergence",
            "a loss that has left its best level and stays away",
            "损失偏离其最佳水平且不再回落",
        ),
        "loss_plateau": (
            "loss_plateau",
            "a loss that fell and then stands still although the learning rate would let it move",
            "损失下降后停滞，而学习率并未衰减",
        ),
        "grad_norm_frozen": (
            "grad_norm_frozen",
            "a gradient norm that repeats to the last digit",
            "梯度范数逐位重复",
        ),
        "stale_grad_norm": (
            "stale_grad_norm",
            "the gradient norm of an earlier step, printed again on skipped ones",
            "被跳过的步重复输出此前的梯度范数",
        ),
        "lr_frozen": (
            "lr_frozen",
            "a learning rate that stands still because steps are skipped",
            "优化步被跳过，学习率停止变化",
        ),
        "scale_extreme": (
            "scale_extreme",
            "an operand's scale out of all proportion, or an amax of 0 in a tensor that had values",
            "操作数缩放因子异常，或曾有数值的张量 amax 为 0",
        ),
        "dead_gradient": (
            "dead_gradient",
            "a layer whose gradient is all zero after it once was not",
            "曾有梯度的层梯度全为零",
        ),
        "update_ratio": (
            "update_ratio",
            "updates that are far too large or too small for their weights",
            "更新量相对权重过大或过小",
        ),
        "precision_mismatch": (
            "precision_mismatch",
            "a layer that declares FP8 and executes something else",
            "声明为 FP8 却以其他精度执行的层",
        ),
        "format_mismatch": (
            "format_mismatch",
            "an FP8 format that the chip cannot execute",
            "芯片无法执行的 FP8 格式",
        ),
        "clip_saturation": (
            "clip_saturation",
            "gradients that are clipped far more often than this run's own level",
            "梯度裁剪频率远高于本次训练自身水平",
        ),
        "stalled": (
            "stalled",
            "no step any more, or a hang that a log reports",
            "不再有新的训练步，或日志报告挂起",
        ),
        "straggler": (
            "straggler",
            "a rank that is later than the others step after step",
            "持续慢于其他进程的 rank",
        ),
        "throughput_drop": (
            "throughput_drop",
            "a step time above its own baseline",
            "单步耗时高于自身基线",
        ),
        "vram_near_oom": (
            "vram_near_oom",
            "a card whose memory is nearly full, or an allocator that retries",
            "显存接近用尽，或分配器重试",
        ),
        "vram_leak": (
            "vram_leak",
            "memory that grows steadily and will fill the card",
            "显存持续增长，即将占满",
        ),
        "vram_jitter": (
            "vram_jitter",
            "memory in use that jumps from sample to sample",
            "显存占用在采样间大幅跳动",
        ),
        "gpu_util_drop": (
            "gpu_util_drop",
            "a card that is busy less than half of what it was",
            "显卡利用率不足自身水平的一半",
        ),
        "gpu_imbalance": (
            "gpu_imbalance",
            "cards of one run that are not equally busy",
            "同一训练各显卡负载不均",
        ),
        "gpu_fault": (
            "gpu_fault",
            "uncorrectable memory errors, a hang of the card, throttling, a link that has lost lanes",
            "不可纠正的内存错误、显卡挂起、降频，或链路丢失通道",
        ),
        "data_gap": (
            "data_gap",
            "telemetry that was lost",
            "遥测数据丢失",
        ),
        "coverage_low": (
            "coverage_low",
            "layers that train and whose gradients are not observed",
            "参与训练却未被观测到梯度的层",
        ),
    }
)
"""Alert kind -> (field of RuleParameters that holds its parameters, what it fires on in English, in Chinese)."""
