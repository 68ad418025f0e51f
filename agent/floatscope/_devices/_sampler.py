"""Which source answers for which card, and what to do when one hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from floatscope import wire
from floatscope._devices._figures import Cards, Unavailable, fill
from floatscope._devices._nvml import NvmlCards
from floatscope._devices._rocm import PyrsmiCards
from floatscope._devices._rocm_smi import RocmSmiCards
from floatscope._devices._sysfs import SysfsCards

__all__ = ["RocmCards", "Sampler", "in_time"]

_T = TypeVar("_T")


def in_time(call: Callable[[], _T], timeout_s: float, what: str) -> _T:
    """The result of ``call``, or ``Unavailable`` after ``timeout_s``; a call that hangs keeps its thread."""
    results: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001  # raised again below, in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise Unavailable(f"{what}: no answer within {timeout_s:g} s")
    return results[0]


class RocmCards:
    """AMD SMI's cards through pyrsmi, else ROCm SMI's, each missing figure filled from sysfs by PCI address.

    sysfs alone where neither can be had.
    """

    def __init__(self, root: Path, timeout_s: float, *, files_only: bool) -> None:
        self._timeout_s = timeout_s
        self._smi: Cards | None = None
        self._sysfs: Cards | None = None
        self.findings: list[str] = []
        libraries: list[tuple[str, Callable[[Path], Cards]]] = [("pyrsmi", PyrsmiCards), ("rocm-smi", RocmSmiCards)]
        for name, library in () if files_only else libraries:
            try:
                self._smi = in_time(partial(library, root), timeout_s, name)
                break
            except Unavailable as finding:
                self.findings.append(str(finding))
        try:
            self._sysfs = in_time(lambda: SysfsCards(root, timeout_s / 2), timeout_s, "sysfs")
        except Unavailable as finding:
            self.findings.append(str(finding))
        if self._smi is None and self._sysfs is None:
            raise Unavailable("; ".join(self.findings))

    def read(self) -> list[wire.Device]:
        """One reading per card; ``Unavailable`` once neither source answers."""
        by_address = {reading.pci: reading for reading in self._read_sysfs()}
        readings = self._read_smi()
        if by_address or self._sysfs is not None:
            # An address that the kernel does not know cannot be joined with anything. The backend names both whether
            # there was something to fill or not: a card must not become another one when a figure of it is lost.
            readings = [
                msgspec.structs.replace(
                    fill(reading, by_address[reading.pci]),
                    backend=f"{reading.backend}+{by_address[reading.pci].backend}",
                )
                for reading in readings
                if reading.pci in by_address
            ]
        readings = readings or list(by_address.values())
        if not readings and self._sysfs is None:
            raise Unavailable("; ".join(self.findings))
        return readings

    def _read_sysfs(self) -> list[wire.Device]:
        if self._sysfs is None:
            return []
        try:
            # It looks to its own time, card by card.
            return self._sysfs.read()
        except Unavailable as finding:
            self.findings.append(str(finding))
            self._sysfs = None
            return []

    def _read_smi(self) -> list[wire.Device]:
        if self._smi is None:
            return []
        try:
            return in_time(self._smi.read, self._timeout_s, "the SMI library")
        except Unavailable as finding:
            # The hanging call still holds the library: it is not asked again.
            self.findings.append(str(finding))
            self._smi = None
            return []


def _nvml(timeout_s: float) -> Callable[[], list[wire.Device]]:
    cards = in_time(NvmlCards, timeout_s, "nvml")

    def read() -> list[wire.Device]:
        readings: list[wire.Device] = []
        try:
            in_time(partial(cards.read_into, readings), 2 * timeout_s, "nvml")
        except Unavailable:
            if not cards.give_up():
                raise
        return list(readings)

    return read


class Sampler:
    """All cards of this machine; those of the kernel's files alone with ``files_only``.

    Raises ``Unavailable`` with every reason when there is none.
    """

    def __init__(self, root: Path, timeout_s: float, *, files_only: bool = False) -> None:
        self._sources: list[Callable[[], list[wire.Device]]] = []
        self._numbers: dict[str, int] = {}
        self.findings: list[str] = []
        # RocmCards looks to its own time: one more thread for each reading would be a tenth of what 8 cards cost.
        attempts: list[Callable[[], Callable[[], list[wire.Device]]]] = [
            lambda: RocmCards(root, timeout_s, files_only=files_only).read,
            lambda: _nvml(timeout_s),
        ]
        for attempt in attempts[:1] if files_only else attempts:
            try:
                self._sources.append(attempt())
            except Unavailable as finding:
                self.findings.append(str(finding))
        if not self._sources:
            raise Unavailable("; ".join(self.findings))

    def read(self) -> list[wire.Device]:
        """One reading per card, numbered from 0; ``Unavailable`` when the last source has gone.

        A card keeps its number while others come and go.
        """
        readings: list[wire.Device] = []
        for source in list(self._sources):
            try:
                readings += source()
            except Unavailable as finding:
                self.findings.append(str(finding))
                self._sources.remove(source)
        if not self._sources:
            raise Unavailable("; ".join(self.findings))
        # Partitions of a card may have its address: they are one card, as the first tells of it.
        cards: dict[int, wire.Device] = {}
        for reading in readings:
            number = self._number(reading)
            cards.setdefault(number, msgspec.structs.replace(reading, index=number))
        return list(cards.values())

    def _number(self, reading: wire.Device) -> int:
        key = reading.pci or f"{reading.backend} {reading.index}"
        return self._numbers.setdefault(key, len(self._numbers))
