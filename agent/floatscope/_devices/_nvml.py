"""NVIDIA cards by the driver's own library, through ctypes: no wheel that a ROCm torch could mistake for its own.

Names and layouts: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Hashable
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field

import msgspec

from floatscope import wire
from floatscope._devices._figures import Unavailable, number, pci_address, percent, readable, whole
from floatscope._devices._nvml_slow import SlowFunctions, clock_mhz
from floatscope._devices._turns import OFTEN_S, SELDOM_S, Turns

__all__ = ["NvmlCards"]

_LIBRARY = "libnvidia-ml.so.1"
_TEMPERATURE_GPU = 0
_SM_CLOCK, _MEMORY_CLOCK = 1, 2


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t"""

    _fields_ = (
        ("bus_id_legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pci_device_id", c_uint),
        ("pci_subsystem_id", c_uint),
        ("bus_id", c_char * 32),
    )


class _Memory(ctypes.Structure):
    """nvmlMemory_t, bytes"""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t, per cent of the last sample period"""

    _fields_ = (("gpu", c_uint), ("memory", c_uint))


@dataclass(slots=True)
class _Card:
    """``index`` is NVML's; address and name are asked until they were to be had."""

    index: int
    handle: c_void_p = field(default_factory=c_void_p)
    pci: str | None = None
    name: str | None = None


class NvmlCards:
    """Every card that NVML shows. A figure that a card does not support is None."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
            _declare(self._library)
        except (OSError, AttributeError) as error:
            # AttributeError: a driver so old that it lacks one of these functions.
            raise Unavailable(f"nvml: {error}") from error
        library = self._library
        self._check(library.nvmlInit_v2())
        count = c_uint()
        self._check(library.nvmlDeviceGetCount_v2(byref(count)))
        if count.value == 0:
            raise Unavailable("nvml: the driver shows no card")
        self._cards: list[_Card] = []
        reasons = []
        for index in range(count.value):
            # One that fell off the bus, or is not ours, is refused; the others are there.
            card = _Card(index)
            status = library.nvmlDeviceGetHandleByIndex_v2(index, byref(card.handle))
            if status:
                reasons.append(self._text(status))
            else:
                self._cards.append(card)
        if not self._cards:
            raise Unavailable(f"nvml: {', '.join(dict.fromkeys(reasons))}")
        self._slow = SlowFunctions(library)
        self._throttles, self._links = Turns(OFTEN_S), Turns(SELDOM_S)
        self._reading: object = None
        self._asked: set[int] = set()

    def _check(self, status: int) -> None:
        if status:
            raise Unavailable(f"nvml: {self._text(status)}")

    def _text(self, status: int) -> str:
        return (self._library.nvmlErrorString(status) or b"").decode(errors="replace") or f"error {status}"

    def read_into(self, readings: list[wire.Device]) -> None:
        """Append one reading per card, in NVML's order (that of the PCI bus).

        A call may hang in the driver, which holds its thread and not its card's neighbours: the next reading, on
        another thread, leaves out the cards whose answers are still awaited.
        """
        self._reading = readings
        cards = [card for card in self._cards if card.index not in self._asked]
        indices = [card.index for card in cards]
        turns = self._throttles.take(indices), self._links.take(indices)
        for card in cards:
            self._asked.add(card.index)
            reading = self._read_card(card, turns)
            self._asked.discard(card.index)
            if self._reading is not readings:  # it was given up
                return
            readings.append(reading)

    def give_up(self) -> bool:
        """Await nothing more of the reading that is in progress; whether there are cards left to ask."""
        self._reading = None
        return len(self._asked) < len(self._cards)

    def _read_card(self, card: _Card, turns: tuple[Hashable, Hashable]) -> wire.Device:
        library, handle, index = self._library, card.handle, card.index
        pci, memory, utilization = _Pci(), _Memory(), _Utilization()
        milliwatts, celsius = c_uint(), c_uint()
        name = ctypes.create_string_buffer(96)
        # A card that is lost refuses these too, and would be another one without them.
        if card.pci is None and library.nvmlDeviceGetPciInfo_v3(handle, byref(pci)) == 0:
            card.pci = pci_address(pci.bus_id.decode(errors="replace"))
        if card.name is None and library.nvmlDeviceGetName(handle, name, len(name)) == 0:
            card.name = readable(name.value.decode(errors="replace"))
        has_memory = library.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == 0
        has_utilization = library.nvmlDeviceGetUtilizationRates(handle, byref(utilization)) == 0
        has_power = library.nvmlDeviceGetPowerUsage(handle, byref(milliwatts)) == 0
        has_temperature = library.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU, byref(celsius)) == 0
        reading = wire.Device(
            time_ns=time.time_ns(),
            backend="nvml",
            index=index,
            pci=card.pci,
            name=card.name,
            vram_used_bytes=whole(memory.used) if has_memory else None,
            vram_total_bytes=(whole(memory.total) or None) if has_memory else None,
            busy_percent=percent(utilization.gpu) if has_utilization else None,
            memory_busy_percent=percent(utilization.memory) if has_utilization else None,
            power_watts=number(milliwatts.value, 1e-3) if has_power else None,
            temperature_celsius=number(celsius.value) if has_temperature else None,
            core_clock_mhz=clock_mhz(library, handle, _SM_CLOCK),
            memory_clock_mhz=clock_mhz(library, handle, _MEMORY_CLOCK),
        )
        throttle, links = turns
        found = self._slow.throttle(handle) if index == throttle else {}
        if index == links:
            found |= self._slow.links_and_errors(handle)
        return msgspec.structs.replace(reading, **found)


def _declare(library: ctypes.CDLL) -> None:
    library.nvmlErrorString.restype = c_char_p
    library.nvmlDeviceGetHandleByIndex_v2.argtypes = (c_uint, POINTER(c_void_p))
    library.nvmlDeviceGetPciInfo_v3.argtypes = (c_void_p, POINTER(_Pci))
    library.nvmlDeviceGetName.argtypes = (c_void_p, c_char_p, c_uint)
    library.nvmlDeviceGetMemoryInfo.argtypes = (c_void_p, POINTER(_Memory))
    library.nvmlDeviceGetUtilizationRates.argtypes = (c_void_p, POINTER(_Utilization))
    library.nvmlDeviceGetPowerUsage.argtypes = (c_void_p, POINTER(c_uint))
    library.nvmlDeviceGetTemperature.argtypes = (c_void_p, c_int, POINTER(c_uint))
