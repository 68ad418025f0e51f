"""Settings that articles on mixed precision hand around, where no framework has them or where the value is wrong.

The limits come from ``floatscope.formats``; docs/doctor.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from floatscope._doctor._verdict import Verdict, warning, wrong
from floatscope._formats import formats

__all__ = ["NOT_KEYS", "scaler_checks", "unknown"]

NOT_KEYS = {
    "compute_type": ("no argument of any release", "bf16: true (or fp16, pure_bf16, fp8 with fp8_backend)"),
    "compute_dtype": ("the framework derives it and does not read it", "bf16: true"),
    "mixed_precision": ("accelerate's key, not this framework's", "bf16: true, or fp8: true in LLaMA-Factory"),
    "precision": ("not this framework's key", "bf16: true"),
    "dtype": ("not this framework's key", "bf16: true"),
    "hysteresis": ("only DeepSpeed (fp16.hysteresis) and Megatron have it", "fp16.hysteresis in the DeepSpeed file"),
    "loss_scale": ("only DeepSpeed has it (fp16.loss_scale)", "fp16.loss_scale in the DeepSpeed file; 0 is dynamic"),
    "gradient_clipping": ("DeepSpeed's key", "max_grad_norm"),
}
"""Keys that somebody else has, or nobody: why, and what to write instead."""

_SCALER = {"growth_factor": 2.0, "backoff_factor": 0.5}
_DEFAULT_INTERVAL = 2000
"""growth_interval of torch.amp.GradScaler"""


def scaler_checks(name: str, value: Any) -> Iterator[Verdict]:  # noqa: ANN401  # whatever stands in a file
    """Values of a loss scaler's setting ``name``, wherever it was written."""
    key = name.rpartition(".")[2]
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return
    if key in _SCALER and not _power_of_two(value):
        yield warning(
            name,
            value,
            "a scale that is no power of two rounds every gradient when it is multiplied and when it is divided out",
            f"{key}: {_SCALER[key]:g}, or another power of two",
        )
    elif key in ("growth_interval", "loss_scale_window") and 0 < value < 500:
        default = _DEFAULT_INTERVAL if key == "growth_interval" else 1000
        yield warning(
            name,
            value,
            f"the scale is raised until it overflows: an interval of {value} skips a step that often. The default is "
            f"{default}",
            f"leave {key} out",
        )
    elif key in ("max_grad_norm", "gradient_clipping") and 0 < value < 1e-3:
        scale = 1 / value
        why = (
            f"1/{scale:g}: the norm is taken after unscaling"
            if _power_of_two(scale)
            else "the norm is that of gradients"
        )
        yield warning(name, value, f"{why}, so this clips every step", f"{name}: 1.0")
    elif key in ("e4m3_max", "fp8_max") and value == formats["e4m3fn"].max:
        yield warning(
            name, value, f"E4M3 ends at {formats['e4m3fnuz'].max:g} on MI300 (FNUZ)", "take the maximum from the dtype"
        )


def _power_of_two(value: float) -> bool:
    return value > 0 and math.frexp(value)[0] == 0.5


def unknown(key: str, value: object, near: str | None, consequence: str) -> Verdict:
    """A key that the framework does not have."""
    if key in NOT_KEYS:
        why, fix = NOT_KEYS[key]
        return wrong(key, value, f"{why}; {consequence}", fix)
    fix = f"did you mean {near}?" if near else f"remove {key}"
    return wrong(key, value, f"there is no such key; {consequence}", fix)
