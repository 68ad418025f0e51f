"""accelerate's configuration file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from floatscope._doctor._keys import closest, known
from floatscope._doctor._lint_deepspeed import deepspeed_checks
from floatscope._doctor._lint_precision import fp8_checks, is_on
from floatscope._doctor._lint_values import name_checks
from floatscope._doctor._published import NOT_KEYS, scaler_checks
from floatscope._doctor._verdict import Verdict, warning, wrong

__all__ = ["accelerate_checks"]

_PRECISIONS = ("no", "fp16", "bf16", "fp8")
_SAGEMAKER = "AMAZON_SAGEMAKER"
_FP8_BACKENDS = ("TE", "AO", "MSAMP")
_IN_THE_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "zero3_save_16bit_model",
)
"""What accelerate refuses beside deepspeed_config_file."""


def accelerate_checks(
    values: Mapping[str, Any], deepspeed: Mapping[str, Any], chips: Sequence[str]
) -> Iterator[Verdict]:
    """Keys, precision, FP8, and DeepSpeed's file ``deepspeed`` where one is named."""
    yield from _keys(values)
    # distributed_type has names of its own there.
    hidden = "distributed_type" if values.get("compute_environment") == _SAGEMAKER else ""
    yield from name_checks("accelerate", {key: value for key, value in values.items() if key != hidden})
    if "distributed_type" not in values:
        yield wrong(
            "distributed_type", "missing", "accelerate refuses a file without it", "distributed_type: MULTI_GPU"
        )
    raw = values.get("mixed_precision", "no")
    precision = "no" if raw in (False, None) else str(raw).lower()
    if precision not in _PRECISIONS:
        near = closest(precision, _PRECISIONS)
        yield wrong(
            "mixed_precision", raw, f"it is one of {', '.join(_PRECISIONS)}", f"mixed_precision: {near or 'bf16'}"
        )
    if "fp16" in values:
        yield warning("fp16", values["fp16"], "the old key; mixed_precision replaces it", "mixed_precision: fp16")
    yield from _fp8(values, precision, chips)
    inner = values.get("deepspeed_config")
    inner = inner if isinstance(inner, dict) else {}
    if values.get("distributed_type") == "DEEPSPEED" and not inner:
        yield wrong(
            "deepspeed_config", "missing", "distributed_type is DEEPSPEED", "add deepspeed_config with zero_stage"
        )
    stage = inner.get("zero_stage")
    if stage is not None and (isinstance(stage, bool) or stage not in (0, 1, 2, 3)):
        yield wrong("deepspeed_config.zero_stage", stage, "it is 0, 1, 2 or 3", "zero_stage: 2")
    if stage in (0, 1, 2) and inner.get("offload_param_device") not in (None, "none"):
        yield wrong(
            "deepspeed_config.offload_param_device",
            inner["offload_param_device"],
            f"parameters are sharded by stage 3 only, and the stage is {stage}",
            "zero_stage: 3, or offload_param_device: none",
        )
    yield from scaler_checks("deepspeed_config.gradient_clipping", inner.get("gradient_clipping"))
    if inner.get("deepspeed_config_file"):
        for key in _IN_THE_FILE:
            if key in inner:
                yield wrong(
                    f"deepspeed_config.{key}",
                    inner[key],
                    "beside deepspeed_config_file accelerate refuses to start",
                    f"move {key} into that file",
                )
    if deepspeed:
        yield from deepspeed_checks(deepspeed)
        yield from _against_file(precision, deepspeed)


def _keys(values: Mapping[str, Any]) -> Iterator[Verdict]:
    # The two kinds of file have keys of their own.
    valid = known("accelerate", "sagemaker" if values.get("compute_environment") == _SAGEMAKER else "keys")
    for key, value in values.items():
        if key not in valid:
            near = closest(key, valid)
            fix = NOT_KEYS[key][1] if key in NOT_KEYS and not near else None
            yield wrong(
                key,
                str(value)[:60],
                "there is no such key; accelerate ends with 'had unknown keys'",
                f"did you mean {near}?" if near else fix or f"remove {key}",
            )
    for section in ("fp8_config", "deepspeed_config", "fsdp_config"):
        inner = values.get(section)
        if inner is not None and not isinstance(inner, dict):
            yield wrong(
                section,
                str(inner)[:60],
                "it is a section of settings, which accelerate goes through",
                f"remove {section}",
            )
        for key, value in inner.items() if isinstance(inner, dict) else ():
            # With the prefix of its section or without: accelerate puts it in front.
            spellings = {key, key.removeprefix("fp8_"), f"fsdp_{key}"}
            if not spellings & known("accelerate", section):
                near = closest(key, known("accelerate", section))
                yield wrong(
                    f"{section}.{key}",
                    str(value)[:60],
                    "accelerate launch has no such option and ignores it",
                    f"did you mean {near}?" if near else f"remove {key}",
                )


def _fp8(values: Mapping[str, Any], precision: str, chips: Sequence[str]) -> Iterator[Verdict]:
    config = values.get("fp8_config")
    config = config if isinstance(config, dict) else {}
    if precision == "fp8":
        yield from fp8_checks("mixed_precision", "fp8", chips)
        backend = str(config.get("backend", "AO")).upper()
        if backend not in _FP8_BACKENDS:
            yield wrong("fp8_config.backend", backend, f"it is one of {', '.join(_FP8_BACKENDS)}", "backend: AO")
        elif backend == "MSAMP" and any(chip.startswith("gfx") for chip in chips):
            yield wrong("fp8_config.backend", backend, "MS-AMP is written for CUDA only", "backend: AO")
    elif config:
        yield wrong(
            "fp8_config",
            f"mixed_precision {precision}",
            "settings for FP8 are there and FP8 is not asked for: the training runs in another format",
            "mixed_precision: fp8, or remove fp8_config",
        )


def _against_file(precision: str, deepspeed: Mapping[str, Any]) -> Iterator[Verdict]:
    other = "bf16" if precision == "fp16" else "fp16"
    section = deepspeed.get(other)
    if precision != "no" and isinstance(section, dict) and is_on(section, "enabled"):
        yield wrong(
            "mixed_precision",
            f"{precision}, {other}.enabled true in the DeepSpeed file",
            "they contradict: accelerate refuses to start",
            f'"{other}": {{"enabled": "auto"}}',
        )
