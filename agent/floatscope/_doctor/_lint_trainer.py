"""Keys, learning rate, warm-up and the like of transformers' TrainingArguments, which LLaMA-Factory extends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from floatscope._doctor._keys import closest, known
from floatscope._doctor._published import NOT_KEYS, scaler_checks, unknown
from floatscope._doctor._verdict import Verdict, warning, wrong

__all__ = ["full_adam", "key_checks", "number", "schedule_checks"]

_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu: true",
    "group_by_length": "train_sampling_strategy: group_by_length",
    "adafactor": "optim: adafactor",
    "push_to_hub_token": "hub_token",
    "push_to_hub_model_id": "hub_model_id",
    "fsdp_transformer_layer_cls_to_wrap": "transformer_layer_cls_to_wrap in fsdp_config",
    "fsdp_min_num_params": "min_num_params in fsdp_config",
    "fp16_backend": "nothing: torch's own autocast is the only one left",
    "half_precision_backend": "nothing: torch's own autocast is the only one left",
    "fp16_opt_level": "nothing: Apex is no longer used",
    "split_batches": "split_batches in accelerator_config",
    "dispatch_batches": "dispatch_batches in accelerator_config",
}
_OF_SCRIPTS = ("dtype", "precision", "mixed_precision", "loss_scale", "gradient_clipping")
"""Options that training scripts on transformers have themselves: of TRL, diffusers, ms-swift."""
_MISSPELT = 0.85
"""A slip of the keyboard is at 0.9; lora_target_modules, which scripts have, is at 0.82 of optim_target_modules."""
_DAY_S = 86_400


def number(values: Mapping[str, Any], key: str) -> float | None:
    """``values[key]`` if it is a finite number."""
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def full_adam(values: Mapping[str, Any]) -> bool:
    """Whether Adam itself moves every weight: GaLore, APOLLO and BAdam have rates and precisions of their own."""
    own = any(values.get(key) is True for key in ("use_galore", "use_apollo", "use_badam"))
    return values.get("finetuning_type") == "full" and not own


def key_checks(
    framework: str, values: Mapping[str, Any], *, strict: bool, consequence: str | None = None
) -> Iterator[Verdict]:
    """Keys that do not exist. A script has options of its own, also in the JSON that it parses: there (not ``strict``)
    only near misses are named. ``consequence``: what becomes of them, where it is not what the framework's parser does.
    """
    valid = known("transformers") | (known("llamafactory") if framework == "llamafactory" else frozenset())
    consequence = consequence or (
        "LLaMA-Factory ends with 'Some specified arguments are not used'"
        if framework == "llamafactory"
        else "HfArgumentParser ends with 'Some keys are not used'"
    )
    for key, value in values.items():
        if key in valid:
            continue
        if key in known("transformers", "removed"):
            new = _RENAMED.get(key)
            yield wrong(
                key,
                value,
                "transformers 5 has removed it; releases of transformers 4 take it",
                f"write {new}" if new else f"remove {key}",
            )
            continue
        near = closest(key, valid, 0.75 if strict else _MISSPELT)
        own = framework == "transformers" and key in _OF_SCRIPTS
        if strict or near or (key in NOT_KEYS and not own):
            yield unknown(key, value, near, consequence)
        yield from scaler_checks(key, value)


def schedule_checks(values: Mapping[str, Any]) -> Iterator[Verdict]:
    """Learning rate, warm-up, batch, clipping, time-outs, intervals."""
    yield from _learning_rate(values)
    yield from _warmup(values)
    for key, names in (("lr_scheduler_type", "lr_scheduler_type"), ("optim", "optim")):
        value = values.get(key)
        if isinstance(value, str) and value not in known("transformers", names):
            near = closest(value, known("transformers", names))
            yield wrong(key, value, "no such name", f"did you mean {near}?" if near else f"leave {key} out")
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        value = values.get(key)
        if (
            value is not None
            and value != "auto"
            and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
        ):
            yield wrong(key, value, "it is a number of samples or batches: an integer of 1 or more", f"{key}: 1")
    yield from scaler_checks("max_grad_norm", values.get("max_grad_norm"))
    clip = number(values, "max_grad_norm")
    if clip is not None and clip <= 0:
        yield warning(
            "max_grad_norm",
            values["max_grad_norm"],
            "gradients are not clipped: the first spike reaches the weights",
            "max_grad_norm: 1.0",
        )
    timeout = number(values, "ddp_timeout")
    if timeout is not None and timeout > _DAY_S:
        years = timeout / (365.25 * _DAY_S)
        shown = f"{years:.1f} years" if years >= 1 else f"{timeout / _DAY_S:.0f} days"
        yield warning(
            "ddp_timeout",
            values["ddp_timeout"],
            f"it is in seconds: {shown}. A rank that hangs is never reported",
            "ddp_timeout: 1800, the default; 7200 where one rank prepares the data",
        )
    yield from _intervals(values)


def _learning_rate(values: Mapping[str, Any]) -> Iterator[Verdict]:
    value = values.get("learning_rate")
    rate = number(values, "learning_rate")
    if value is not None and rate is None:
        yield wrong("learning_rate", repr(value), "it is no number", "learning_rate: 1.0e-4")
    elif rate is not None and rate <= 0:
        yield wrong("learning_rate", value, "nothing is learnt at it", "learning_rate: 1.0e-4")
    elif rate is not None and rate > 1e-2:
        yield warning("learning_rate", value, "transformers diverge at this rate with Adam", "learning_rate: 1.0e-4")
    elif rate is not None and rate > 5e-5 and full_adam(values):
        yield warning(
            "learning_rate",
            value,
            "a rate for LoRA: full fine-tuning moves every weight and forgets, or diverges, at it",
            "learning_rate: 1.0e-5",
        )


def _warmup(values: Mapping[str, Any]) -> Iterator[Verdict]:
    ratio, steps, last = (number(values, key) for key in ("warmup_ratio", "warmup_steps", "max_steps"))
    if ratio and steps:
        yield warning(
            "warmup_ratio",
            values["warmup_ratio"],
            f"warmup_steps is {steps:g} as well: transformers 4 takes the steps, transformers 5 the ratio",
            "keep one",
        )
    if ratio is not None and not 0 <= ratio < 1:
        yield wrong("warmup_ratio", values["warmup_ratio"], "it is a share of the training, from 0 to 1", "0.03")
    if steps is not None and last is not None and steps >= last > 0:
        yield wrong(
            "warmup_steps",
            values["warmup_steps"],
            f"the training has {last:g} steps: the learning rate never arrives",
            f"warmup_steps: {max(1, int(0.03 * last))}",
        )
    if values.get("lr_scheduler_type") == "constant" and (ratio or steps):
        yield warning(
            "lr_scheduler_type",
            "constant",
            "it ignores the warm-up that is asked for",
            "lr_scheduler_type: constant_with_warmup",
        )


def _intervals(values: Mapping[str, Any]) -> Iterator[Verdict]:
    evaluation, saving = values.get("eval_strategy", "no"), values.get("save_strategy", "steps")
    # YAML reads an unquoted no as a truth value.
    evaluation = "no" if evaluation is False else evaluation
    if evaluation is None or saving is None:
        return  # a script's variable
    if values.get("load_best_model_at_end") is not True or saving == "best":
        return
    if evaluation != saving:
        yield wrong(
            "load_best_model_at_end",
            "true",
            f"eval_strategy is {evaluation} and save_strategy {saving}: transformers refuses to start",
            f"eval_strategy: {saving}",
        )
    every, kept = values.get("eval_steps"), values.get("save_steps")
    if not evaluation == saving == "steps" or not isinstance(every, int) or not isinstance(kept, int):
        return
    if every >= 1 and kept >= 1 and kept % every:
        yield wrong(
            "save_steps",
            f"{kept}, eval_steps {every}",
            "with load_best_model_at_end it has to be a multiple of eval_steps: transformers refuses to start",
            f"save_steps: {-(-kept // every) * every}",
        )
