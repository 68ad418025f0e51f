"""AMD cards by pyrsmi, which wraps AMD SMI."""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import c_int, c_void_p
from pathlib import Path
from typing import Any, TypeVar

from floatscope import wire
from floatscope._devices._figures import Unavailable, number, percent, readable, whole

__all__ = ["PyrsmiCards", "driver_is_live"]

_T = TypeVar("_T")
_POINTER = c_void_p
_ARGUMENT_TYPES = {
    # pyrsmi 1.1 calls this one with three of its four arguments. Declared, the call raises before C reads the fourth
    # from a stale register, and pyrsmi goes on to the sockets.
    "amdsmi_get_processor_handles_by_type": (_POINTER, c_int, _POINTER, _POINTER),
    "amdsmi_get_processor_handles": (_POINTER, _POINTER, _POINTER),
    "amdsmi_get_gpu_activity": (_POINTER, _POINTER),
    "amdsmi_get_gpu_asic_info": (_POINTER, _POINTER),
    "amdsmi_get_gpu_device_bdf": (_POINTER, _POINTER),
    "amdsmi_get_gpu_memory_total": (_POINTER, c_int, _POINTER),
    "amdsmi_get_gpu_memory_usage": (_POINTER, c_int, _POINTER),
    "amdsmi_get_power_info": (_POINTER, _POINTER),
}
"""pyrsmi 1.0 and 1.1 pass 64-bit handles as undeclared Python ints, which ctypes cuts to 32 bits: no card is found."""


class PyrsmiCards:
    """Every card that AMD SMI shows. Temperature is not among pyrsmi's figures."""

    def __init__(self, root: Path) -> None:
        try:
            from pyrsmi import rocml
        except ImportError as error:
            raise Unavailable(f"pyrsmi: not installed ({error})") from error
        self._rocml: Any = rocml
        # pyrsmi asks a shell to read this file; the answer is the same without one.
        rocml._driver_initialized = lambda: driver_is_live(root)
        try:
            _declare_argument_types(rocml)
            rocml.smi_initialize()
            count = rocml.smi_get_device_count()
        except Exception as error:  # pyrsmi raises RuntimeError, KeyError, its own classes, and what ctypes raises
            raise Unavailable(f"pyrsmi: {type(error).__name__}: {error}") from error
        if count < 1:
            raise Unavailable("pyrsmi: AMD SMI shows no card")
        self._count = count
        self._lasting: dict[tuple[int, str], Any] = {}

    def read(self) -> list[wire.Device]:
        """One reading per card, in AMD SMI's order."""
        try:
            return [self._read_card(index) for index in range(self._count)]
        except Exception as error:  # as above
            raise Unavailable(f"pyrsmi: {type(error).__name__}: {error}") from error

    def _read_card(self, index: int) -> wire.Device:
        rocml = self._rocml
        return wire.Device(
            time_ns=time.time_ns(),
            backend="pyrsmi",
            index=index,
            pci=self._once(index, "pci", self._pci),
            name=self._once(index, "name", lambda card: readable(rocml.smi_get_device_name(card))),
            vram_used_bytes=whole(rocml.smi_get_device_memory_used(index)),
            vram_total_bytes=self._once(
                index, "total", lambda card: whole(rocml.smi_get_device_memory_total(card)) or None
            ),
            busy_percent=percent(rocml.smi_get_device_utilization(index)),
            memory_busy_percent=percent(rocml.smi_get_device_memory_busy(index)),
            power_watts=number(rocml.smi_get_device_average_power(index)),
        )

    def _once(self, index: int, what: str, ask: Callable[[int], _T | None]) -> _T | None:
        """What stays as it is while the card is there: not asked again once it was to be had."""
        known: _T | None = self._lasting.get((index, what))
        if known is None and (known := ask(index)) is not None:
            self._lasting[index, what] = known
        return known

    def _pci(self, index: int) -> str | None:
        packed = whole(self._rocml.smi_get_device_pci_id(index))
        if packed is None:
            return None
        # Through the amdsmi package the domain starts at bit 32, through ctypes (amdsmi_bdf_t) at bit 16.
        domain = packed >> (32 if self._rocml._using_amdsmi_package else 16)
        return f"{domain:04x}:{packed >> 8 & 0xFF:02x}:{packed >> 3 & 0x1F:02x}.{packed & 7}"


def _declare_argument_types(rocml: Any) -> None:  # noqa: ANN401  # an untyped module
    try:
        rocml._load_rocm_library()
    except rocml.ROCMLError_LibraryNotFound:
        # The amdsmi package may bring a library of its own; ``smi_initialize`` will say if not.
        return
    for name, types in _ARGUMENT_TYPES.items():
        if hasattr(rocml.rocm_lib, name):
            getattr(rocml.rocm_lib, name).argtypes = types


def driver_is_live(root: Path) -> bool:
    """Whether amdgpu is loaded and serves, by ``root`` (normally /sys)."""
    try:
        return (root / "module/amdgpu/initstate").read_text().strip() == "live"
    except OSError:
        return False
