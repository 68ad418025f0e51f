"""AMD cards by ROCm SMI (librocm_smi64), through ctypes: what ROCm 5 and distributions have where AMD SMI is missing.

Names and units: https://rocm.docs.amd.com/projects/rocm_smi_lib/
"""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path

from floatscope import wire
from floatscope._devices._figures import Unavailable, number, percent, readable, whole
from floatscope._devices._rocm import driver_is_live

__all__ = ["RocmSmiCards"]

_SONAME = "librocm_smi64.so.1"
"""Of Debian's and Ubuntu's package, which lies where the linker looks; ROCm's own lies below ``ROCM_PATH``."""
_NAME_BYTES = 256
_VRAM = 0  # rsmi_memory_type_t
_EDGE, _JUNCTION = 0, 1  # rsmi_temperature_type_t
_CURRENT = 0  # rsmi_temperature_metric_t


@dataclass(slots=True)
class _Lasting:
    """What is asked until it was to be had, and then no more."""

    pci: str | None = None
    name: str | None = None
    vram_total_bytes: int | None = None


class RocmSmiCards:
    """Every card that ROCm SMI shows. It reads /sys, wherever ``root`` is.

    Power is the average, which MI300 does not have.
    """

    def __init__(self, root: Path) -> None:
        if root != Path("/sys"):
            raise Unavailable(f"rocm-smi: reads /sys and not {root}")
        if not driver_is_live(root):
            # Without a driver some builds end the process by an assertion.
            raise Unavailable("rocm-smi: the amdgpu driver is not loaded")
        library = self._library = _load()
        self._check(library.rsmi_init(0))
        count = c_uint32()
        self._check(library.rsmi_num_monitor_devices(byref(count)))
        if count.value == 0:
            raise Unavailable("rocm-smi: it shows no card")
        self._lasting = [_Lasting() for _ in range(count.value)]

    def _check(self, status: int) -> None:
        if status:
            text = c_char_p()
            self._library.rsmi_status_string(status, byref(text))
            raise Unavailable(f"rocm-smi: {(text.value or b'').decode(errors='replace')} ({status})")

    def read(self) -> list[wire.Device]:
        """One reading per card, in ROCm SMI's order."""
        return [self._read_card(card, lasting) for card, lasting in enumerate(self._lasting)]

    def _read_card(self, card: int, lasting: _Lasting) -> wire.Device:
        library = self._library
        if lasting.pci is None:
            lasting.pci = self._pci(card)
        if lasting.name is None:
            lasting.name = self._name(card)
        if lasting.vram_total_bytes is None:
            lasting.vram_total_bytes = whole(self._bytes(library.rsmi_dev_memory_total_get, card)) or None
        busy, memory_busy, microwatts = c_uint32(), c_uint32(), c_uint64()
        has_busy = library.rsmi_dev_busy_percent_get(card, byref(busy)) == 0
        has_memory_busy = library.rsmi_dev_memory_busy_percent_get(card, byref(memory_busy)) == 0
        has_power = library.rsmi_dev_power_ave_get(card, 0, byref(microwatts)) == 0
        return wire.Device(
            time_ns=time.time_ns(),
            backend="rocm-smi",
            index=card,
            pci=lasting.pci,
            name=lasting.name,
            vram_used_bytes=whole(self._bytes(library.rsmi_dev_memory_usage_get, card)),
            vram_total_bytes=lasting.vram_total_bytes,
            busy_percent=percent(busy.value) if has_busy else None,
            memory_busy_percent=percent(memory_busy.value) if has_memory_busy else None,
            power_watts=number(microwatts.value, 1e-6) if has_power else None,
            temperature_celsius=self._temperature(card),
        )

    @staticmethod
    def _bytes(ask: ctypes._NamedFuncPointer, card: int) -> int | None:
        answer = c_uint64()
        return answer.value if ask(card, _VRAM, byref(answer)) == 0 else None

    def _temperature(self, card: int) -> float | None:
        """The junction's, else the edge's; ROCm SMI has millidegrees Celsius."""
        for sensor in (_JUNCTION, _EDGE):
            answer = c_int64()
            if self._library.rsmi_dev_temp_metric_get(card, sensor, _CURRENT, byref(answer)) == 0:
                return number(answer.value, 1e-3)
        return None

    def _pci(self, card: int) -> str | None:
        packed = c_uint64()
        if self._library.rsmi_dev_pci_id_get(card, byref(packed)):
            return None
        bits = packed.value
        return f"{bits >> 32:04x}:{bits >> 8 & 0xFF:02x}:{bits >> 3 & 0x1F:02x}.{bits & 7}"

    def _name(self, card: int) -> str | None:
        name = ctypes.create_string_buffer(_NAME_BYTES)
        if self._library.rsmi_dev_name_get(card, name, _NAME_BYTES):
            return None
        return readable(name.value.decode(errors="replace"))


def _load() -> ctypes.CDLL:
    own = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "lib/librocm_smi64.so"
    try:
        library = ctypes.CDLL(str(own) if own.exists() else _SONAME)
        _declare(library)
    except (OSError, AttributeError) as error:
        # AttributeError: a library so old that it lacks one of these functions.
        raise Unavailable(f"rocm-smi: {error}") from error
    return library


def _declare(library: ctypes.CDLL) -> None:
    library.rsmi_init.argtypes = (c_uint64,)
    library.rsmi_num_monitor_devices.argtypes = (POINTER(c_uint32),)
    library.rsmi_status_string.argtypes = (c_int, POINTER(c_char_p))
    library.rsmi_dev_pci_id_get.argtypes = (c_uint32, POINTER(c_uint64))
    library.rsmi_dev_name_get.argtypes = (c_uint32, c_char_p, c_size_t)
    library.rsmi_dev_memory_total_get.argtypes = (c_uint32, c_int, POINTER(c_uint64))
    library.rsmi_dev_memory_usage_get.argtypes = (c_uint32, c_int, POINTER(c_uint64))
    library.rsmi_dev_busy_percent_get.argtypes = (c_uint32, POINTER(c_uint32))
    library.rsmi_dev_memory_busy_percent_get.argtypes = (c_uint32, POINTER(c_uint32))
    library.rsmi_dev_power_ave_get.argtypes = (c_uint32, c_uint32, POINTER(c_uint64))
    library.rsmi_dev_temp_metric_get.argtypes = (c_uint32, c_uint32, c_int, POINTER(c_int64))
