"""Values that are no value of their setting: names that nobody knows, texts where numbers or truth values belong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from floatscope._doctor._keys import choices, closest, known
from floatscope._doctor._read import Exponent
from floatscope._doctor._verdict import Verdict, warning, wrong

__all__ = ["kind_checks", "name_checks", "switch_checks"]

_SHOWN = 8
_MEANT = {
    "bitsandbytes": ("bnb",),
    "float16": ("fp16",),
    "bfloat16": ("bf16",),
    "float32": ("fp32",),
    "fp16": ("float16",),
    "bf16": ("bfloat16",),
    "fp32": ("float32",),
    "half": ("fp16", "float16"),
    "gpu": ("none",),
    "e4m3fn": ("E4M3",),
    "e4m3fnuz": ("E4M3",),
    "e5m2fnuz": ("E5M2",),
}
"""Names that others have for the same."""
_ANY_CASE = ("accelerate",)
_TRUE = ("true", "yes", "on", "1", "t", "y")
_FALSE = ("false", "no", "off", "0", "f", "n")
_SWITCHED_ON = "it is a text, and any text counts as true: this is switched on"
_WORDS = ("yes", "no", "true", "false", "t", "f", "y", "n", "1", "0")
"""string_to_bool in transformers' hf_argparser"""
_JUDGED_ELSEWHERE = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps")


def name_checks(framework: str, values: Mapping[str, Any]) -> Iterator[Verdict]:
    """Settings that take one of a few names, and have another."""
    for path, names in choices(framework).items():
        *sections, key = path.split(".")
        place: Any = values
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        value = place.get(key) if isinstance(place, Mapping) else None
        # YAML reads an unquoted no as a truth value; accelerate numbers some of its names.
        if value is None or (value is False and {"no", "NO"} & set(names)) or _is_number(framework, value):
            continue
        told = str(value)
        if told in names or (framework in _ANY_CASE and told.upper() in [name.upper() for name in names]):
            continue
        if framework == "deepspeed" and told == "auto":
            continue
        meant = next((name for name in _MEANT.get(told.lower(), ()) if name in names), None) or closest(told, names)
        listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        yield wrong(
            path,
            told[:60],
            "LLaMA-Factory knows no such method, and loads the model without any quantisation"
            if key == "quantization_method"
            else f"it is one of {listed}",
            f"{key}: {meant}" if meant else f"{key}: one of {listed}",
        )


def _is_number(framework: str, value: object) -> bool:
    return framework == "accelerate" and (isinstance(value, int) or str(value).isdecimal())


def kind_checks(framework: str, values: Mapping[str, Any]) -> Iterator[Verdict]:
    """Of a YAML or JSON file, whose values transformers takes as they are: texts for numbers and for truth values."""
    owners = ("transformers", "llamafactory") if framework == "llamafactory" else ("transformers",)
    numbers, switches = (frozenset().union(*(known(o, kind) for o in owners)) for kind in ("numbers", "switches"))
    for key, value in values.items():
        if key in numbers and key not in _JUDGED_ELSEWHERE and isinstance(value, str):
            number = _as_number(value)
            yield wrong(
                key,
                repr(value)[:60],
                "it is a text and nobody converts it: the training ends with a TypeError",
                f"{key}: {value.strip()}, without quotes" if number is not None else f"{key}: a number",
            )
        elif key in numbers and isinstance(value, float) and math.isnan(value):
            yield wrong(key, "nan", "everything that is computed with it is NaN", f"remove {key}")
        elif key in switches and isinstance(value, str) and value.lower() in _FALSE:
            yield wrong(key, repr(value), _SWITCHED_ON, f"{key}: false")
        elif key in switches and isinstance(value, str) and value.lower() not in _TRUE:
            yield wrong(key, repr(value)[:60], _SWITCHED_ON, f"{key}: true, or {key}: false")
        if framework == "transformers" and isinstance(value, Exponent) and key in numbers:
            yield warning(
                key,
                value.text,
                "without a point it is no number of YAML 1.1: yaml.safe_load, by which HfArgumentParser reads, makes "
                "it a text",
                f"{key}: {value.with_point}",
            )


def switch_checks(values: Mapping[str, Any]) -> Iterator[Verdict]:
    """Of the arguments of LLaMA-Factory's command: words that are no truth value where one is expected."""
    for key in sorted(known("transformers", "switches") | known("llamafactory", "switches")):
        value = values.get(key)
        if isinstance(value, str) and value.lower() not in _WORDS:
            yield wrong(
                key,
                value[:60],
                "it is no truth value: HfArgumentParser ends with 'Truthy value expected'",
                f"--{key} true",
            )


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
