"""Which variant of the pass a device gets, and why."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from floatscope._log import logger
from floatscope._stats._compiled import Compiled
from floatscope._stats._cpu import Cpu
from floatscope._stats._golden import difference
from floatscope._stats._reference import Reference
from floatscope._stats._rows import Variant
from floatscope._stats._rtc import CUDA, HIP

__all__ = ["KERNELS", "variant_for", "why"]

KERNELS = ("torch", "nvrtc", "hiprtc", "triton")
"""Values of FLOATSCOPE_KERNELS."""


class _Choice(NamedTuple):
    variant: Variant
    reason: str


_chosen: dict[torch.device, _Choice] = {}


def variant_for(device: torch.device) -> Variant:
    """The variant of the pass that is used on ``device``, chosen and built the first time it is asked for.

    That time may wait for the device and compile for half a second: ask before the training begins. On NVIDIA it is
    NVRTC's, on a CPU and wherever nothing else works plain torch; FLOATSCOPE_KERNELS names another one. A variant is
    used only after it gave the reference's results on this device.
    """
    return _choice(device).variant


def why(device: torch.device) -> str:
    """Why ``device`` has the variant that it has."""
    return _choice(device).reason


def _choice(device: torch.device) -> _Choice:
    if device == torch.device("cuda"):
        device = torch.device("cuda", torch.cuda.current_device())
    if device not in _chosen:
        _chosen[device] = _choose(device)
    return _chosen[device]


def _choose(device: torch.device) -> _Choice:
    wanted = os.environ.get("FLOATSCOPE_KERNELS")
    if device.type == "cpu" and wanted != "torch":
        return _Choice(Cpu(), "the tensors are in the memory of the CPU")
    if device.type != "cuda":
        return _Choice(Reference(), "FLOATSCOPE_KERNELS" if wanted else f"there are no kernels for {device.type}")
    if wanted is not None and wanted not in KERNELS:
        logger.warning("FLOATSCOPE_KERNELS=%s is none of %s and is ignored", wanted, ", ".join(KERNELS))
        wanted = None
    if wanted == "torch":
        return _Choice(Reference(), "FLOATSCOPE_KERNELS")
    hip = torch.version.hip is not None
    names = [wanted] if wanted else ([] if hip else ["nvrtc"])
    reasons = []
    for name in names:
        variant, reason = _tried(name, device)
        if variant is not None:
            return _Choice(variant, "FLOATSCOPE_KERNELS" if wanted else "checked against the reference on this device")
        reasons.append(f"{name}: {reason}")
        logger.warning("statistics on %s do without the kernels by %s: %s", device, name, reason)
    return _Choice(Reference(), "; ".join(reasons) or "nothing faster was checked on ROCm")


def _tried(name: str, device: torch.device) -> tuple[Variant | None, str]:
    try:
        variant = Compiled(HIP if name == "hiprtc" else CUDA, device)
        found = difference(variant, device)
    except Exception as error:  # noqa: BLE001 (torch, the driver and the compiler raise what they like)
        return None, f"{type(error).__name__}: {error}"
    return (variant, "") if found is None else (None, f"wrong results: {found}")
