"""Which FP8 formats a chip multiplies, by its architecture or its product name."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["FP8", "fp8_of"]

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
