"""Precision settings of LLaMA-Factory and transformers, against each other and against the chip."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from floatscope._chips import fp8_of
from floatscope._doctor._keys import closest
from floatscope._doctor._lint_trainer import full_adam
from floatscope._doctor._verdict import Verdict, ok, warning, wrong
from floatscope._formats import formats

__all__ = ["fp8_checks", "is_on", "precision_checks", "zero_stage"]

_BF16_MODELS = re.compile(
    r"qwen|llama-?[23]|gemma|mi[sx]tral|deepseek|glm-?4|internlm|\byi-|phi-?[34]|olmo", re.IGNORECASE
)
"""Families whose weights were trained in BF16: activations beyond FP16's 65504 are normal in them."""
_PTQ = re.compile(r"gptq|awq|aqlm|int4|int8", re.IGNORECASE)
_ATTENTION = ("auto", "disabled", "sdpa", "fa2", "fa3")
"""AttentionFunction in LLaMA-Factory's constants"""
_FP8_BACKENDS = ("auto", "torchao", "te", "msamp")
_NO_BF16 = re.compile(r"sm_[1-7]\d$|gfx(8\d\d|900|906)$|\b[PV]100\b|\bT4\b")
_TRUE = ("true", "yes", "1", "on", "t", "y")
_REFUSES = "the framework refuses to start"


def is_on(values: Mapping[str, Any], key: str) -> bool:
    """Whether ``values[key]`` is true, as YAML, JSON or a command line says it."""
    value = values.get(key)
    return value == 1 if isinstance(value, int) else isinstance(value, str) and value.lower() in _TRUE


def zero_stage(deepspeed: Mapping[str, Any]) -> object:
    """The ZeRO stage of a DeepSpeed configuration; 0 without one."""
    zero = deepspeed.get("zero_optimization")
    if not isinstance(zero, dict):
        return int(zero is True)  # as files for its first releases have it
    stage = zero.get("stage", 0)
    return int(stage) if isinstance(stage, str) and re.fullmatch("[0-9]", stage) else stage


def precision_checks(
    framework: str, values: Mapping[str, Any], deepspeed: Mapping[str, Any], chips: Sequence[str]
) -> Iterator[Verdict]:
    """fp16, bf16, pure_bf16, fp8, quantisation, attention; ``deepspeed`` is its configuration, if one is named."""
    yield from _conflicts(values, zero_stage(deepspeed) == 3)
    yield from _for_model(values)
    yield from _for_chips(values, chips)
    if framework != "llamafactory":
        return
    yield from _fp8(values, chips)
    yield from _quantisation(values, zero_stage(deepspeed) == 3)
    yield from _attention(values, chips)
    # A text is a mistake of its own, and null may be anything.
    if is_on(values, "do_train") and not any(
        is_on(values, key) or isinstance(values.get(key, False), str | None)
        for key in ("fp16", "bf16", "pure_bf16", "fp8", "use_cpu")
    ):
        yield warning("bf16", "not set", "the training runs in FP32: twice the memory, and slower", "bf16: true")


def _conflicts(values: Mapping[str, Any], zero3: bool) -> Iterator[Verdict]:
    fp16, bf16, pure = (is_on(values, key) for key in ("fp16", "bf16", "pure_bf16"))
    if fp16 and bf16:
        yield wrong("fp16", "true, bf16 true", f"at most one of them may be: {_REFUSES}", "remove fp16: true")
    if is_on(values, "fp16_full_eval") and is_on(values, "bf16_full_eval"):
        yield wrong(
            "fp16_full_eval", "true, bf16_full_eval true", f"at most one of them may be: {_REFUSES}", "keep one"
        )
    if pure and fp16:
        yield wrong(
            "pure_bf16",
            "true, fp16 true",
            "weights in BF16 under a loss scaler for FP16: gradients are scaled for a range that they do not have",
            "remove fp16: true",
        )
    elif pure and bf16:
        yield warning(
            "pure_bf16",
            "true, bf16 true",
            "bf16 asks for FP32 weights with autocast and pure_bf16 for neither: the weights stay in BF16",
            "keep bf16: true for full precision of the weights, pure_bf16: true for half the memory",
        )
    if pure and zero3:
        yield wrong("pure_bf16", "true with ZeRO-3", f"incompatible: {_REFUSES}", "bf16: true instead of pure_bf16")
    if pure and full_adam(values) and not values.get("optim"):
        yield warning(
            "pure_bf16",
            "true, finetuning_type full",
            "an update below 2^-9 of its weight is rounded away (7 bits of mantissa), and no FP32 copy keeps it",
            "bf16: true, which keeps the weights in FP32",
        )


def _for_model(values: Mapping[str, Any]) -> Iterator[Verdict]:
    model = values.get("model_name_or_path")
    if is_on(values, "fp16") and not is_on(values, "bf16") and isinstance(model, str) and _BF16_MODELS.search(model):
        yield warning(
            "fp16",
            f"true for {model}",
            f"the model was trained in BF16: activations beyond FP16's {formats['fp16'].max:g} become Inf and steps "
            "are skipped",
            "bf16: true",
        )


def _for_chips(values: Mapping[str, Any], chips: Sequence[str]) -> Iterator[Verdict]:
    for key in ("bf16", "pure_bf16"):
        if is_on(values, key) and (old := next((chip for chip in chips if _NO_BF16.search(chip)), None)):
            yield wrong(
                key, f"true on {old}", f"the chip has no BF16 instruction: {_REFUSES}, or emulates it", "fp16: true"
            )
    if is_on(values, "tf32") and (amd := next((chip for chip in chips if chip.startswith("gfx")), None)):
        yield wrong("tf32", f"true on {amd}", f"it is NVIDIA's format: {_REFUSES}", "remove tf32")
    if is_on(values, "fp16") and "gfx90a" in chips:
        yield warning(
            "fp16",
            "true on gfx90a",
            f"its FP16 matrix instructions flush subnormals: values below {formats['fp16'].min_normal:.2g} are lost",
            "bf16: true",
        )


def fp8_checks(item: str, value: str, chips: Sequence[str]) -> Iterator[Verdict]:
    """FP8 is asked for: whether the chip has it, and which."""
    variants = {chip: fp8_of(chip) for chip in chips}
    if not chips:
        yield warning(
            item,
            value,
            "no card is known here that could have FP8",
            "judge it for the target: --chip gfx942, for example",
        )
    for chip, variant in variants.items():
        if variant == "none":
            yield wrong(
                item,
                f"{value} on {chip}",
                "the chip has no FP8 matrix instruction: products are emulated or silently run as BF16, and nothing "
                "gets faster",
                "bf16: true, or a chip with FP8: gfx942 (MI300), gfx950 (MI355), gfx1201, sm_89 and newer",
            )
        elif variant == "fnuz":
            yield ok(item, f"{value} on {chip}: FNUZ, E4M3 ends at {formats['e4m3fnuz'].max:g}, not at 448")


def _fp8(values: Mapping[str, Any], chips: Sequence[str]) -> Iterator[Verdict]:
    on = is_on(values, "fp8")
    backend = "auto" if values.get("fp8_backend") is None else values["fp8_backend"]
    if on:
        yield from fp8_checks("fp8", "true", chips)
        if is_on(values, "fp16"):
            yield wrong(
                "fp8",
                "true, fp16 true",
                "two precisions are asked for, and accelerate takes one: which, its release decides",
                "bf16: true instead of fp16",
            )
        if values.get("quantization_bit") is not None:
            yield wrong("fp8", "true with quantization_bit", f"incompatible: {_REFUSES}", "remove one of the two")
        if backend == "msamp" and any(chip.startswith("gfx") for chip in chips):
            yield wrong("fp8_backend", "msamp", "MS-AMP is written for CUDA only", "fp8_backend: torchao")
    else:
        for key in ("fp8_backend", "fp8_enable_fsdp_float8_all_gather"):
            if key in values and values[key] not in (False, None, "auto"):
                yield warning(key, values[key], "without fp8: true it does nothing that was meant", "fp8: true")
    if backend not in _FP8_BACKENDS:
        near = closest(str(backend), _FP8_BACKENDS)
        yield wrong(
            "fp8_backend",
            backend,
            "no such backend: accelerate falls back to another one, without a word",
            f"did you mean {near}?" if near else f"one of {', '.join(_FP8_BACKENDS)}",
        )


def _quantisation(values: Mapping[str, Any], zero3: bool) -> Iterator[Verdict]:
    bits, model = values.get("quantization_bit"), values.get("model_name_or_path")
    if bits is not None and values.get("finetuning_type", "lora") not in ("lora", "oft", None):
        yield wrong(
            "quantization_bit",
            f"{bits}, finetuning_type {values['finetuning_type']}",
            f"quantised weights cannot be trained: {_REFUSES}",
            "finetuning_type: lora, or remove quantization_bit",
        )
    if zero3 and bits is not None and (bits != 4 or values.get("quantization_method", "bnb") not in ("bnb", None)):
        yield wrong(
            "quantization_bit",
            f"{bits} with ZeRO-3",
            f"only 4 bits of bitsandbytes can be sharded: {_REFUSES}",
            "ZeRO-2, or quantization_bit: 4 with quantization_method: bnb",
        )
    elif zero3 and isinstance(model, str) and _PTQ.search(model):
        yield wrong(
            "model_name_or_path",
            f"{model} with ZeRO-3",
            f"a model quantised after training cannot be sharded: {_REFUSES}",
            "ZeRO-2, or the model's original weights",
        )


def _attention(values: Mapping[str, Any], chips: Sequence[str]) -> Iterator[Verdict]:
    value = values.get("flash_attn")
    if value is None:
        return
    if value not in _ATTENTION:
        # Keys of the old yes-or-no option, and the names that transformers uses.
        meant = {
            "true": "fa2",
            "flash_attention_2": "fa2",
            "flash_attention_3": "fa3",
            "false": "disabled",
            "eager": "disabled",
        }
        near = meant.get(str(value).lower()) or closest(str(value), _ATTENTION)
        yield wrong(
            "flash_attn",
            value,
            f"it is one of {', '.join(_ATTENTION)}: {_REFUSES}",
            f"flash_attn: {near}" if near else "flash_attn: auto",
        )
    elif value == "fa3" and (other := next((chip for chip in chips if not re.match(r"sm_9|sm_1", chip)), None)):
        yield wrong(
            "flash_attn", f"fa3 on {other}", "FlashAttention 3 is written for Hopper only", "flash_attn: fa2 or sdpa"
        )
