"""Clocks, links, errors and throttling by NVML. Each function is newer than the oldest driver: one that is not there is
a figure that cannot be had.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from floatscope._devices._figures import number, whole

__all__ = ["SlowFunctions", "clock_mhz"]

_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_START = 0
"""NVML_VOLATILE_ECC"""
_SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""GT/s of each generation of PCI Express."""
_MOST_LANES = 32

_POWER = 0x4
"""nvmlClocksThrottleReasonSwPowerCap"""
_THERMAL = 0x20 | 0x40
"""SwThermalSlowdown, HwThermalSlowdown"""
_BRAKE = 0x80
"""HwPowerBrakeSlowdown"""
_SLOWED = 0x8
"""HwSlowdown, which comes with one of the two above, or alone with a card's own protection."""


def _ask(library: ctypes.CDLL, name: str, handle: c_void_p, value: Any, *kinds: int) -> int | None:  # noqa: ANN401
    """What the function ``name`` writes into ``value``; None when the card or the driver has no such thing."""
    function = getattr(library, name, None)
    if function is None or function(handle, *map(c_int, kinds), byref(value)) != 0:
        return None
    return int(value.value)


def clock_mhz(library: ctypes.CDLL, handle: c_void_p, kind: int) -> float | None:
    """The clock of a domain now."""
    return number(_ask(library, "nvmlDeviceGetClockInfo", handle, c_uint(), kind))


class SlowFunctions:
    """Figures of ``wire.Device`` by name."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def throttle(self, handle: c_void_p) -> dict[str, float | int | None]:
        """Whether the card is slowed now, as 0 or 100."""
        reasons = _ask(self._library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle, c_ulonglong())
        if reasons is None:
            return {}
        brake = reasons & _BRAKE or (reasons & _SLOWED and not reasons & _THERMAL)
        return {
            "throttle_power_percent": 100.0 if reasons & _POWER else 0.0,
            "throttle_thermal_percent": 100.0 if reasons & _THERMAL else 0.0,
            "throttle_brake_percent": 100.0 if brake else 0.0,
        }

    def links_and_errors(self, handle: c_void_p) -> dict[str, float | int | None]:
        """PCI Express, and ECC since the driver's start; a card with ECC off has no counts."""

        def ask(name: str) -> int | None:
            return whole(_ask(self._library, name, handle, c_uint()))

        def errors(kind: int) -> int | None:
            return whole(_ask(self._library, "nvmlDeviceGetTotalEccErrors", handle, c_ulonglong(), kind, _SINCE_START))

        return {
            "pcie_width": _lanes(ask("nvmlDeviceGetCurrPcieLinkWidth")),
            "pcie_speed_gts": _SPEEDS.get(ask("nvmlDeviceGetCurrPcieLinkGeneration") or 0),
            "pcie_max_width": _lanes(ask("nvmlDeviceGetMaxPcieLinkWidth")),
            "pcie_max_speed_gts": _SPEEDS.get(ask("nvmlDeviceGetMaxPcieLinkGeneration") or 0),
            "pcie_replays": ask("nvmlDeviceGetPcieReplayCounter"),
            "ecc_corrected": errors(_CORRECTED),
            "ecc_uncorrected": errors(_UNCORRECTED),
        }


def _lanes(width: int | None) -> int | None:
    return width if width is not None and 0 < width <= _MOST_LANES else None
