"""What the settings that alerts speak of are called in each framework."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["FRAMEWORKS", "SETTINGS", "framework_of", "with_keys"]

FRAMEWORKS = ("llamafactory", "transformers", "deepspeed", "megatron", "torch")

_ROWS: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "learning_rate", "optimizer.params.lr", "--lr", "lr= of the optimizer"),
    "warmup": (
        "warmup_ratio",
        "warmup_ratio or warmup_steps",
        "scheduler.params.warmup_num_steps",
        "--lr-warmup-fraction",
        "torch.optim.lr_scheduler.LinearLR",
    ),
    "clip": ("max_grad_norm", "max_grad_norm", "gradient_clipping", "--clip-grad", "clip_grad_norm_(max_norm=)"),
    "bf16": ("bf16: true", "bf16=True", "bf16.enabled", "--bf16", "torch.autocast(dtype=torch.bfloat16)"),
    "fp8": ("fp8 and fp8_backend", "accelerate's mixed_precision: fp8", "fp8", "--fp8-format", "the FP8 recipe"),
    "fp8_margin": (
        "margin of the FP8 recipe",
        "margin of accelerate's FP8 recipe",
        "margin of the FP8 recipe",
        "--fp8-margin and --fp8-amax-history-len",
        "DelayedScaling(margin=, amax_history_len=)",
    ),
    "first_scale": (
        "fp16.initial_scale_power of the DeepSpeed config",
        "fp16.initial_scale_power of the DeepSpeed config",
        "fp16.initial_scale_power",
        "--initial-loss-scale",
        "GradScaler(init_scale=)",
    ),
    "batch": (
        "per_device_train_batch_size",
        "per_device_train_batch_size",
        "train_micro_batch_size_per_gpu",
        "--micro-batch-size",
        "batch_size= of the DataLoader",
    ),
    "recompute": (
        "disable_gradient_checkpointing: false",
        "gradient_checkpointing=True",
        "activation_checkpointing",
        "--recompute-granularity",
        "torch.utils.checkpoint",
    ),
    "workers": (
        "dataloader_num_workers",
        "dataloader_num_workers",
        "num_workers= of the DataLoader",
        "--num-workers",
        "num_workers= of the DataLoader",
    ),
    "timeout": (
        "ddp_timeout (in seconds)",
        "ddp_timeout (in seconds)",
        "init_distributed(timeout=)",
        "--distributed-timeout-minutes",
        "init_process_group(timeout=)",
    ),
}

SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {setting: MappingProxyType(dict(zip(FRAMEWORKS, names, strict=True))) for setting, names in _ROWS.items()}
)
"""Setting -> framework -> what is typed there."""

_CHINESE: Mapping[str, str] = MappingProxyType(
    {
        "lr= of the optimizer": "优化器的 lr=",
        "warmup_ratio or warmup_steps": "warmup_ratio 或 warmup_steps",
        "fp8 and fp8_backend": "fp8 和 fp8_backend",
        "accelerate's mixed_precision: fp8": "accelerate 的 mixed_precision: fp8",
        "the FP8 recipe": "FP8 配方",
        "margin of the FP8 recipe": "FP8 配方的 margin",
        "margin of accelerate's FP8 recipe": "accelerate 的 FP8 配方的 margin",
        "--fp8-margin and --fp8-amax-history-len": "--fp8-margin 和 --fp8-amax-history-len",
        "fp16.initial_scale_power of the DeepSpeed config": "DeepSpeed 配置的 fp16.initial_scale_power",
        "batch_size= of the DataLoader": "DataLoader 的 batch_size=",
        "num_workers= of the DataLoader": "DataLoader 的 num_workers=",
        "ddp_timeout (in seconds)": "ddp_timeout（单位：秒）",
    }
)
"""What is not only typed but said with English words."""

_UNKNOWN = "llamafactory"
"""LLaMA-Factory's names are those of transformers, and most are read as plain words."""


def framework_of(config: Mapping[str, Any], series: Collection[str]) -> str:
    """The framework of a run, by its configuration or else by the names of its series; "" where neither tells."""
    named = str(config.get("framework", "")).lower().replace("-", "").replace("_", "")
    for framework in FRAMEWORKS:
        if framework in named:
            return framework
    if any("deepspeed" in str(name).lower() for name in config.get("optimizers") or ()):
        return "deepspeed"
    if "lm loss" in series or "grad norm" in series:
        return "megatron"
    if "learning_rate" in series or "train/learning_rate" in series:
        return "transformers"
    return "torch" if config.get("torch") else ""


def with_keys(text: str, framework: str, *, chinese: bool = False) -> str:
    """``text`` with each ``{setting}`` spelled as ``framework`` does."""
    for setting, names in SETTINGS.items():
        name = names[framework or _UNKNOWN]
        text = text.replace(f"{{{setting}}}", _CHINESE.get(name, name) if chinese else name)
    return text
