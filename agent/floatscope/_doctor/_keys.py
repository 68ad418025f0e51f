"""Which keys each framework knows, taken from its released sources (``keys.json`` names the releases)."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

__all__ = ["FRAMEWORKS", "choices", "closest", "framework_of", "known", "release"]

FRAMEWORKS = ("llamafactory", "transformers", "deepspeed", "accelerate")


@functools.cache
def _all() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("floatscope._doctor").joinpath("keys.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return loaded


def known(framework: str, section: str = "keys") -> frozenset[str]:
    """Keys of a framework, of one of its sections, or the values of one of its settings."""
    return frozenset(_all()[framework][section])


def choices(framework: str) -> Mapping[str, Sequence[str]]:
    """Settings of a framework that take one of a few names, with those; sections and setting are joined by points."""
    found: Mapping[str, Sequence[str]] = _all()[framework]["values"]
    return found


def release(framework: str) -> str:
    """The release that ``known`` speaks of."""
    return str(_all()[framework]["release"])


def closest(key: str, among: Iterable[str], likeness: float = 0.75) -> str | None:
    """The name that somebody who wrote ``key`` probably meant; None where nothing comes close (``likeness`` 1 is
    equal)."""
    names = {name.lower(): name for name in sorted(among)}
    near = difflib.get_close_matches(key.lower().replace("-", "_"), names, n=1, cutoff=likeness)
    return names[near[0]] if near else None


def framework_of(values: Mapping[str, Any]) -> str | None:
    """Whose configuration this is; None where too little belongs to anybody."""
    own = {
        # "fp16" is a mapping for DeepSpeed and a truth value for the others; "optimizer" alone is anybody's.
        "deepspeed": {
            key for key in known("deepspeed") | known("deepspeed", "removed") if isinstance(values.get(key), dict)
        }
        | {key for key in values if key in ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping")},
        "accelerate": {key for key in values if key in known("accelerate")},
        "llamafactory": {key for key in values if key in known("llamafactory")},
        "transformers": {key for key in values if key in known("transformers") | known("transformers", "removed")},
    }
    if "distributed_type" in values or "compute_environment" in values:
        return "accelerate"
    if own["deepspeed"] and not {"output_dir", "model_name_or_path"} & set(values):
        return "deepspeed"
    if {"stage", "finetuning_type", "template", "dataset_dir", "cutoff_len", "lora_target"} & own["llamafactory"]:
        return "llamafactory"
    best = max(("transformers", "llamafactory", "accelerate"), key=lambda name: len(own[name]))
    return best if own[best] else None
