"""Named sets of parameters, and changing single ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from floatscope_server.rules.parameters import RuleParameters

__all__ = ["DEFAULT", "PRESETS", "Changes", "as_changes", "changed", "with_preset"]

Changes = Mapping[str, Mapping[str, float]]
"""Rule -> parameter -> value; the rules are the fields of ``RuleParameters``. Every rule has ``enabled`` too:
1, or 0 for one that raises no alert."""

DEFAULT = "default"

PRESETS: Mapping[str, Changes] = MappingProxyType(
    {
        DEFAULT: {},
        "as-published": {
            # "Alert when a gradient exceeds 6.0e4": log2(65504 / 6e4) bits of FP16, beyond the maximum of E5M2.
            "limits": {"near_bits": math.log2(65504 / 6.0e4)},
            # "More than 10 % underflow", whatever the layer's own level.
            "underflow": {"baseline_ratio": 0.0, "steps": 1, "of_steps": 1},
            # "A clip frequency above 10 % means retune": true of 10 in 14 healthy public runs.
            "clip_saturation": {"ratio": 0.0},
            # "Loss above 1.5 times its median": 1185 false alarms over 45,031 points of healthy public runs.
            "loss_spike": {"margin": 0.0, "mads": 0.0},
            "grad_norm_spike": {"info_ratio": 3.0, "warning_ratio": 5.0},
        },
        "strict": {
            "nonfinite": {"startup_steps": 25, "critical_in_a_row": 2},
            "loss_spike": {"ratio": 1.3, "margin": 0.1, "mads": 4.0},
            "loss_divergence": {"ratio": 1.3, "margin": 0.3},
            "grad_norm_spike": {"info_ratio": 3.0, "warning_ratio": 6.0},
            "loss_scale_collapse": {"startup_steps": 25, "warning_in_a_row": 2, "critical_skips": 4},
            "limits": {"near_bits": 2.0},
            "underflow": {"warning_share": 0.05, "critical_share": 0.25},
            "scale_extreme": {"highest": 2.0**32, "lowest": 2.0**-32},
            "dead_gradient": {"steps": 20},
            "update_ratio": {"high": 3e-2, "low": 1e-6},
            "stalled": {"seconds": 30.0, "ratio": 5.0},
            "straggler": {"ratio": 1.25},
            "throughput_drop": {"info_ratio": 1.03, "warning_ratio": 1.15},
            "vram_near_oom": {"share": 0.90},
            "gpu_util_drop": {"ratio": 0.7},
            "gpu_imbalance": {"points": 15.0},
            "coverage_low": {"share": 0.05},
        },
    }
)
"""``as-published`` holds what articles on mixed precision recommend, for those who want to see it beside the rest."""

_ENABLED = "enabled"
_LARGEST_COUNT = 10_000
"""Steps, records or samples that a rule may look back or wait: what a window of that length costs is bearable."""
_SIGNED = frozenset({"near_bits"})
_MAY_BE_ZERO = frozenset({"hold", "keep", "startup_steps", "warm_up_records", "group_steps", "critical_steps"})


def with_preset(name: str) -> RuleParameters:
    """The parameters of a preset; ``ValueError`` for a name that is none."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return changed(RuleParameters(), PRESETS[name])


def changed(base: RuleParameters, changes: Mapping[str, Mapping[str, Any]]) -> RuleParameters:
    """``base`` with ``changes``; ``ValueError`` says what is wrong with them."""
    rules: dict[str, Any] = {}
    off = set(base.off)
    names = _rules_of(base)
    for rule, values in changes.items():
        if rule not in names:
            raise ValueError(f"there is no rule {rule!r}; there are {', '.join(names)}")
        present = getattr(base, rule)
        own = {name: _checked(rule, name, value, present) for name, value in values.items() if name != _ENABLED}
        rules[rule] = dataclasses.replace(present, **own)
        if _ENABLED in values:
            (off.discard if _switch(rule, values[_ENABLED]) else off.add)(rule)
    return dataclasses.replace(base, **rules, off=frozenset(off))


def as_changes(rules: RuleParameters) -> dict[str, dict[str, float]]:
    """All parameters by rule."""
    return {
        rule: {_ENABLED: int(rule not in rules.off), **dataclasses.asdict(getattr(rules, rule))}
        for rule in _rules_of(rules)
    }


def _rules_of(rules: RuleParameters) -> list[str]:
    return [f.name for f in dataclasses.fields(rules) if f.name != "off"]


def _switch(rule: str, value: object) -> bool:
    if isinstance(value, bool) or value not in (0, 1):
        raise ValueError(f"{rule}.{_ENABLED} must be 0 or 1")
    return value == 1


def _checked(rule: str, name: str, value: Any, present: object) -> float:  # noqa: ANN401 - from JSON
    known = {f.name: f.type for f in dataclasses.fields(present)}  # type: ignore[arg-type]
    where = f"{rule}.{name}"
    if name not in known:
        raise ValueError(f"there is no parameter {where}; there are {', '.join(known)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where} must be a finite number")
    if value < 0 and name not in _SIGNED:
        raise ValueError(f"{where} must not be negative")
    if known[name] != "int":
        return float(value)
    if value != int(value):
        raise ValueError(f"{where} must be a whole number")
    if value == 0 and name not in _MAY_BE_ZERO:
        raise ValueError(f"{where} must be at least 1")
    if value > max(_LARGEST_COUNT, getattr(present, name)):
        raise ValueError(f"{where} must be at most {_LARGEST_COUNT}")
    return int(value)
