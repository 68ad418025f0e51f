"""DeepSpeed's configuration, by itself and beside TrainingArguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from floatscope._doctor._keys import closest, known
from floatscope._doctor._lint_precision import is_on, zero_stage
from floatscope._doctor._lint_trainer import number
from floatscope._doctor._lint_values import name_checks
from floatscope._doctor._published import scaler_checks
from floatscope._doctor._verdict import Verdict, warning, wrong

__all__ = ["deepspeed_checks", "together_checks"]

_SECTIONS = ("fp16", "bf16", "zero_optimization")
"""Those that refuse a key that they do not know; at the top one is ignored."""
_EXAMPLES = {
    "fp16": '"enabled": true',
    "bf16": '"enabled": true',
    "zero_optimization": '"stage": 2',
    "optimizer": '"type": "AdamW"',
    "scheduler": '"type": "WarmupLR"',
}
"""Sections, and what a short one has."""
_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n", "auto")
_DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
"""Settings of dynamic loss scaling, all whole numbers."""
_REFUSES = "DeepSpeed refuses to start"
_OLD_OFFLOAD = ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory")


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def deepspeed_checks(values: Mapping[str, Any]) -> Iterator[Verdict]:
    """Keys, precision, loss scale, clipping, ZeRO, batch sizes, schedule."""
    yield from _keys(values)
    yield from _mappings(values)
    yield from name_checks("deepspeed", values)
    yield from _precision(values)
    yield from _clipping(values)
    yield from _zero(values)
    yield from _batch(values)
    yield from _schedule(values)


def _keys(values: Mapping[str, Any]) -> Iterator[Verdict]:
    valid = known("deepspeed")
    for key, value in values.items():
        if key in known("deepspeed", "removed"):
            yield wrong(key, _short(value), "DeepSpeed 0.19 has removed it and refuses to start", f"remove {key}")
        elif key not in valid:
            near = closest(key, valid)
            yield wrong(
                key,
                _short(value),
                "there is no such key; DeepSpeed ignores it without a word",
                f"did you mean {near}?" if near else f"remove {key}",
            )
    for section in _SECTIONS:
        for key, value in _section(values, section).items():
            item = f"{section}.{key}"
            if section == "zero_optimization" and key in known("deepspeed", "removed_zero_optimization"):
                yield wrong(item, _short(value), "DeepSpeed 0.19 has removed it and refuses to start", f"remove {key}")
            elif key not in known("deepspeed", section):
                near = closest(key, known("deepspeed", section))
                yield wrong(
                    item,
                    _short(value),
                    "there is no such key; DeepSpeed refuses to start",
                    f"did you mean {near}?" if near else f"remove {key}",
                )
    if "bfloat16" in values:
        yield warning(
            "bfloat16", _short(values["bfloat16"]), "the old name; bf16 wins where both are", "rename it to bf16"
        )


def _mappings(values: Mapping[str, Any]) -> Iterator[Verdict]:
    for name, inside in _EXAMPLES.items():
        value = values.get(name)
        # "zero_optimization": true is how files for its first releases ask for stage 1.
        if name not in values or isinstance(value, dict) or (name == "zero_optimization" and isinstance(value, bool)):
            continue
        yield wrong(
            name, _short(value), f"it is a section of settings: {_REFUSES}", f'"{name}": {{{inside}}}, or remove {name}'
        )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def _precision(values: Mapping[str, Any]) -> Iterator[Verdict]:
    fp16, bf16 = _section(values, "fp16"), _section(values, "bf16")
    if is_on(fp16, "enabled") and is_on(bf16, "enabled"):
        yield wrong(
            "fp16.enabled",
            "true, bf16.enabled true",
            "only one of them may be: DeepSpeed refuses to start",
            'set one to false, or both to "auto" under transformers',
        )
    for name, section in (("fp16", fp16), ("bf16", bf16)):
        if section and "enabled" not in section:
            yield warning(
                f"{name}.enabled", "missing", f"the section is switched off without it: {name} is not used", "true"
            )
        elif section and str(section["enabled"]).lower() not in _TRUTH:
            yield wrong(
                f"{name}.enabled",
                _short(section["enabled"]),
                f"it is true or false: {_REFUSES}",
                f'"{name}": {{"enabled": true}}',
            )
    yield from _scaling_values(fp16)
    if is_on(fp16, "enabled") or fp16.get("enabled") == "auto":
        yield from _loss_scale(fp16)
    kind = values.get("communication_data_type")
    if str(kind).lower() == "fp16" and is_on(bf16, "enabled"):
        yield warning(
            "communication_data_type",
            "fp16",
            "gradients of a BF16 training are reduced in FP16: beyond 65504 they become Inf",
            "communication_data_type: bf16 or fp32",
        )


def _scaling_values(fp16: Mapping[str, Any]) -> Iterator[Verdict]:
    """What is no value of its setting, which DeepSpeed refuses whether the section is on or off."""
    scale = fp16.get("loss_scale", 0)
    found = _as_number(scale)
    if scale != "auto" and (found is None or not found >= 0):
        yield wrong(
            "fp16.loss_scale",
            _short(scale),
            f"it is a number, 0 (dynamic) or more: {_REFUSES}",
            "fp16.loss_scale: 0, which is dynamic",
        )
    for key in _DYNAMIC:
        value = fp16.get(key, 1)
        found = _as_number(value)
        if value != "auto" and (found is None or found % 1):
            yield wrong(f"fp16.{key}", _short(value), f"it is a whole number: {_REFUSES}", f"leave {key} out")


def _as_number(value: object) -> float | None:
    """A finite number, also in quotes, as DeepSpeed's settings take it; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _loss_scale(fp16: Mapping[str, Any]) -> Iterator[Verdict]:
    if scale := _as_number(fp16.get("loss_scale", 0)):
        if scale < 0:
            return
        yield warning(
            "fp16.loss_scale",
            f"{scale:g}",
            "a fixed scale is never lowered when gradients overflow, nor raised when they underflow",
            "fp16.loss_scale: 0, which is dynamic",
        )
        for key in _DYNAMIC:
            if key in fp16 and fp16[key] != "auto":
                yield warning(
                    f"fp16.{key}", fp16[key], "it belongs to dynamic scaling, and the scale is fixed", "loss_scale: 0"
                )
    else:
        yield from scaler_checks("fp16.loss_scale_window", fp16.get("loss_scale_window"))
        for key in ("loss_scale_window", "min_loss_scale"):
            if (value := number(fp16, key)) is not None and value <= 0:
                yield wrong(f"fp16.{key}", value, f"it must be above 0: {_REFUSES}", f"leave {key} out")
        patience = _as_number(fp16.get("hysteresis", 2))
        if patience is not None and patience < 1:
            yield wrong(
                "fp16.hysteresis",
                f"{patience:g}",
                "it is counted down to 1 before the scale is lowered: from here it never is, and every step is skipped",
                "fp16.hysteresis: 2",
            )
        power = number(fp16, "initial_scale_power")
        if power is not None and not 0 <= power <= 24:
            yield warning(
                "fp16.initial_scale_power",
                f"{power:g}",
                f"the scale starts at 2^{power:g}: one step is skipped for each power of two above what gradients allow"
                if power > 24
                else "a scale below 1 moves gradients towards underflow",
                "fp16.initial_scale_power: 16",
            )


def _clipping(values: Mapping[str, Any]) -> Iterator[Verdict]:
    yield from scaler_checks("gradient_clipping", values.get("gradient_clipping"))
    own = _section(_section(values, "optimizer"), "params").get("max_grad_norm")
    if own is not None:
        yield wrong(
            "optimizer.params.max_grad_norm",
            own,
            f"no optimizer of DeepSpeed takes it: {_REFUSES}",
            f"remove max_grad_norm from the optimizer, and set gradient_clipping: {own}",
        )


def _zero(values: Mapping[str, Any]) -> Iterator[Verdict]:
    zero, stage = _section(values, "zero_optimization"), zero_stage(values)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        yield wrong("zero_optimization.stage", _short(stage), "it is 0, 1, 2 or 3", "stage: 2")
    for part in ("offload_param", "offload_optimizer"):
        for key, value in _section(zero, part).items():
            if key not in known("deepspeed", part):
                near = closest(key, known("deepspeed", part))
                yield wrong(
                    f"zero_optimization.{part}.{key}",
                    _short(value),
                    f"there is no such key; {_REFUSES}",
                    f"did you mean {near}?" if near else f"remove {key}",
                )
    if stage == 0 and _section(zero, "offload_optimizer").get("device") not in (None, "none"):
        yield warning(
            "zero_optimization.offload_optimizer",
            _short(zero["offload_optimizer"]),
            "ZeRO is switched off at stage 0: the optimizer's state stays on the card",
            "stage: 2, or remove offload_optimizer",
        )
    for key in _OLD_OFFLOAD:
        if key in zero:
            yield warning(
                f"zero_optimization.{key}",
                _short(zero[key]),
                "deprecated",
                'offload_optimizer: {"device": "cpu"}, and offload_param with stage 3',
            )
    if stage in (0, 1, 2) and _section(zero, "offload_param").get("device") not in (None, "none"):
        yield wrong(
            "zero_optimization.offload_param",
            _short(zero["offload_param"]),
            f"parameters are sharded by stage 3 only, and the stage is {stage}",
            "stage: 3, or remove offload_param",
        )


def _batch(values: Mapping[str, Any]) -> Iterator[Verdict]:
    total, micro, steps = (
        number(values, key)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        size = values.get(key, 1)
        whole = isinstance(size, int | float) and not isinstance(size, bool) and size >= 1 and not size % 1
        if size != "auto" and not whole:
            yield wrong(
                key,
                repr(size)[:60],
                f"it is a whole number of 1 or more, without quotes: {_REFUSES}",
                f"correct it, or leave {key} out",
            )
    # Fractions are no sizes, and their product may be 0.
    if total and micro and micro * (steps or 1) and total % (micro * (steps or 1)):
        yield wrong(
            "train_batch_size",
            f"{total:g}",
            f"it is ranks x {micro:g} x {steps or 1:g}, and no number of ranks gives that",
            "leave train_batch_size out",
        )


def _schedule(values: Mapping[str, Any]) -> Iterator[Verdict]:
    for name in ("optimizer", "scheduler"):
        for key, value in _section(_section(values, name), "params").items():
            if isinstance(value, str) and (found := _as_number(value)) is not None:
                yield wrong(
                    f"{name}.params.{key}",
                    repr(value)[:60],
                    "it is a text and nobody converts it: the training ends with a TypeError",
                    f'"{key}": {found:g}, without quotes',
                )
    schedule = _section(_section(values, "scheduler"), "params")
    warm, total = number(schedule, "warmup_num_steps"), number(schedule, "total_num_steps")
    if warm is not None and total is not None and warm >= total:
        yield wrong(
            "scheduler.params.warmup_num_steps",
            f"{warm:g}",
            f"the schedule has {total:g} steps: the learning rate never arrives",
            f"warmup_num_steps: {max(1, int(0.03 * total))}",
        )
    peak, rate = number(schedule, "warmup_max_lr"), number(_section(_section(values, "optimizer"), "params"), "lr")
    if peak is not None and rate is not None and peak != rate:
        yield warning(
            "scheduler.params.warmup_max_lr",
            f"{peak:g}",
            f"the optimizer's lr is {rate:g}: after the first step the schedule's counts",
            "write the same value twice",
        )


_PAIRS = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size", 8),
    ("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
    ("gradient_clipping", "max_grad_norm", 1.0),
    ("optimizer.params.lr", "learning_rate", 5e-5),
    ("optimizer.params.eps", "adam_epsilon", 1e-8),
    ("optimizer.params.weight_decay", "weight_decay", 0.0),
    ("scheduler.params.warmup_max_lr", "learning_rate", 5e-5),
)
"""DeepSpeed's key, that of TrainingArguments, and its default: what transformers.integrations.deepspeed compares."""


def together_checks(values: Mapping[str, Any], deepspeed: Mapping[str, Any]) -> Iterator[Verdict]:
    """Whatever is neither "auto" nor the same on both sides, where transformers refuses to start."""
    for path, key, default in _PAIRS:
        *sections, last = path.split(".")
        place = deepspeed
        for section in sections:
            place = _section(place, section)
        theirs, ours = place.get(last), values.get(key, default)
        # Ours is None where a script has a variable there.
        if theirs is not None and theirs != "auto" and ours is not None and theirs != ours:
            yield _mismatch(path, theirs, key, ours)
    for kind in ("fp16", "bf16"):
        theirs = _section(deepspeed, kind).get("enabled")
        ours = is_on(values, kind) or is_on(values, f"{kind}_full_eval")
        if theirs is not None and theirs != "auto" and values.get(kind, False) is not None and bool(theirs) != ours:
            yield _mismatch(f"{kind}.enabled", theirs, kind, ours)
    if is_on(values, "predict_with_generate") and _section(deepspeed, "zero_optimization").get("stage") == 3:
        yield wrong(
            "predict_with_generate", "true with ZeRO-3", "LLaMA-Factory refuses to start", "evaluate after the training"
        )


def _mismatch(path: str, theirs: object, key: str, ours: object) -> Verdict:
    return wrong(
        f"deepspeed {path}",
        f"{theirs}, {key} {ours}",
        "the two files disagree: transformers refuses to start",
        f'"{path.rpartition(".")[2]}": "auto" in the DeepSpeed file',
    )
