"""What a run's configuration promises, and what its layers executed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from floatscope import wire
from floatscope_server.rules.precision import find_precision

__all__ = ["FAMILIES", "declared", "executed", "max_steps", "precision", "unmet"]

_LAST_STEP = ("max_steps", "max_train_steps")
"""The second one is what Accelerate's and Diffusers' example scripts call it."""
_MOST_STEPS = 1 << 53
"""Above it a browser cannot count."""

FAMILIES: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"}),
    "bf16": frozenset({"bf16"}),
    "fp16": frozenset({"fp16"}),
}
"""The formats that fulfil a declared precision. FP32 is what everything falls back to, and so is never missed."""

# "transformer-engine" is Lightning's word for FP8.
_WORDS = (
    ("fp8", re.compile(r"fp8|float8|transformer-engine")),
    ("bf16", re.compile(r"bf16|bfloat16")),
    ("fp16", re.compile(r"fp16|float16|half|^16")),
    ("fp32", re.compile(r"fp32|float32|float|^32|^no$")),
)


def declared(config: Mapping[str, Any]) -> dict[str, Any]:
    """{max_steps, precision, cpu} of a configuration, null where it does not say; ``cpu``: on nothing else."""
    statistics = config.get("statistics")
    places = list(statistics) if isinstance(statistics, Mapping) else []
    return {
        "max_steps": max_steps(config),
        "precision": precision(config),
        "cpu": bool(places) and all(str(place).startswith("cpu") for place in places),
    }


def max_steps(config: Mapping[str, Any]) -> int | None:
    """After how many steps the trainer stops: what it counted out itself, else what its arguments say."""
    for source in (config, *_arguments(config)):
        for name in _LAST_STEP:
            steps = source.get(name)
            if isinstance(steps, int) and not isinstance(steps, bool) and 0 < steps < _MOST_STEPS:
                return steps
    return None


def precision(config: Mapping[str, Any]) -> str | None:
    """fp8, bf16, fp16 or fp32 as it was asked for. Anything that asks for FP8 counts before what a Trainer says, since
    its own flags know bf16 and fp16 only."""
    environment = config.get("environment")
    if isinstance(environment, Mapping) and environment.get("ACCELERATE_MIXED_PRECISION") == "fp8":
        return "fp8"
    if any(arguments.get("fp8") is True for arguments in _arguments(config)):
        return "fp8"
    said = config.get("declared_precision")
    if not isinstance(said, str):
        found = config.get("precision")
        said = _met(found) if isinstance(found, Mapping) else ""
    return next((name for name, words in _WORDS if words.search(said.lower())), None)


def _met(found: Mapping[str, Any]) -> str:
    """What autocast casts to, else the dtype of most parameters."""
    if isinstance(found.get("autocast"), str):
        return str(found["autocast"])
    parameters = found.get("parameters")
    if not isinstance(parameters, Mapping):
        return ""
    counts = {str(name): n for name, n in parameters.items() if isinstance(n, int)}
    return max(counts, key=counts.__getitem__, default="")


def _arguments(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sources = config.get("arguments")
    return [one for one in sources.values() if isinstance(one, Mapping)] if isinstance(sources, Mapping) else []


def executed(layers: Iterable[wire.Layer]) -> dict[str, Any]:
    """{formats, unmet}: how many layers computed in each format, and how many say FP8 by their type and met none.

    A layer computes in what it casts its operands to, else in the format of its output or input. Gradients and weights
    say nothing: under autocast they stay fp32. Layers with parameters count, all where none has any.
    """
    seen = [(layer, found) for layer in layers if layer.order >= 0 and (found := _computes_in(layer)) is not None]
    weighted = [found for layer, found in seen if layer.parameters]
    counts = Counter(weighted or [found for _, found in seen])
    return {"formats": dict(counts.most_common()), "unmet": len(find_precision(layer for layer, _ in seen))}


def _computes_in(layer: wire.Layer) -> str | None:
    cast = [o for kind in ("act_in", "weight") for o in layer.operands if o.kind == kind and o.role == "cast"]
    met = [o for kind in ("act", "act_in") for o in layer.operands if o.kind == kind]
    return next((operand.format for operand in (*cast, *met)), None)


def unmet(wanted: str | None, ran: Mapping[str, Any]) -> int:
    """How many layers did not execute what was declared: all where none executed it, else those that say FP8 by their
    type. 0 while nothing is known of what is executed."""
    formats: Mapping[str, int] = ran.get("formats", {})
    family = FAMILIES.get(wanted or "")
    if formats and family is not None and not family & formats.keys():
        return sum(formats.values())
    return int(ran.get("unmet", 0))
