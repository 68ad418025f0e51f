"""What is known of chips: which FP8 formats they multiply, and how fast their memory is."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["FP8", "bandwidth_of", "fp8_formats", "fp8_of", "gfx_name"]

FP8 = Literal["fnuz", "ocp", "none"]

_CHIPS: tuple[tuple[str, FP8], ...] = (
    (r"gfx90[0-9a]|\bMI(?:50|60|100|2[0-9]0X?)\b", "none"),
    (r"gfx94[0-9]|\bMI3(?:00[AX]?|08X|25X)\b", "fnuz"),
    (r"gfx950|\bMI35[05]X?\b", "ocp"),
    (r"gfx10[0-9]+|gfx11[0-9]+|\bRX [67][0-9]{3}|\bW7[0-9]00\b", "none"),
    (r"gfx120[01]|\bRX 90[0-9]{2}|\bR9[0-9]00\b", "ocp"),
    (r"\bsm_?(?:[1-7][0-9]|8[0-8])\b|\b[VPT]100\b|\bT4\b|\bRTX [23]0[0-9]{2}", "none"),
    (r"\bA(?:10|30|40|100|800|4000|5000|6000)G?\b", "none"),
    (r"\bsm_?(?:89|9[0-9]|1[0-9]{2})a?\b|\bH(?:20|100|200|800)\b|\bGH200\b|\bG?B[23]00\b", "ocp"),
    (r"\bL(?:4|20|40)S?\b|\bRTX [45]0[0-9]{2}", "ocp"),
)
"""The first pattern that matches decides. MI300 and MI325 execute the FNUZ variants only; MI200 and before, RDNA 2 and
3, and NVIDIA before Ada have no FP8 matrix instruction."""


def fp8_of(chip: str) -> FP8 | None:
    """What ``chip`` ("gfx942", "AMD Instinct MI300X", "sm_90", ...) executes; None for one that is not known."""
    return next((variant for pattern, variant in _CHIPS if re.search(pattern, chip)), None)


def gfx_name(version: int) -> str:
    """The architecture that the kernel writes as ``gfx_target_version``: 90402 is gfx942, 90010 gfx90a."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def fp8_formats(variant: FP8 | None) -> tuple[str, ...]:
    """Names in ``floatscope.formats`` of what a chip with ``variant`` multiplies: first E4M3, then E5M2."""
    return {"ocp": ("e4m3fn", "e5m2"), "fnuz": ("e4m3fnuz", "e5m2fnuz")}.get(variant or "", ())


_BANDWIDTH: tuple[tuple[str, float], ...] = (
    (r"gfx90a", 1.638e12),
    (r"gfx942", 5.3e12),
    (r"gfx950", 8.0e12),
    (r"gfx1100", 0.96e12),
    (r"\bH200\b", 4.8e12),
    (r"\bH100 80GB HBM3", 3.35e12),
    (r"\bA100-SXM4-80GB", 2.039e12),
)
"""Peak of the memory by the vendors' data sheets, bytes per second: of one die of a gfx90a, of the largest
card with a gfx1100. An MI325X is a gfx942 too and reaches 6.0e12: the lower one counts."""


def bandwidth_of(chip: str) -> float | None:
    """Peak memory bandwidth in bytes per second; None for a chip that is not known."""
    return next((peak for pattern, peak in _BANDWIDTH if re.search(pattern, chip)), None)
