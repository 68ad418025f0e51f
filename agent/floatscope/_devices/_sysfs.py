"""AMD cards by the kernel's own files below /sys/class/drm. Needs no library and no rights to /dev/kfd or /dev/dri."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from floatscope import wire
from floatscope._devices._figures import Unavailable, number, pci_address, percent, whole
from floatscope._devices._sysfs_slow import Figures, SlowFigures
from floatscope._devices._turns import OFTEN_S, SELDOM_S, Turns

__all__ = ["SysfsCards"]

_AMD = "0x1002"


class SysfsCards:
    """Every card of the amdgpu driver below ``root`` (normally /sys).

    A card whose driver does not answer within ``timeout_s`` has an address and no figures until it does; the others
    are read meanwhile.
    """

    def __init__(self, root: Path, timeout_s: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._clock = clock
        self._slow: dict[Path, SlowFigures] = {}
        self._throttles, self._links = Turns(OFTEN_S, clock), Turns(SELDOM_S, clock)
        self._stuck: dict[Path, threading.Thread] = {}
        if not self._folders():
            raise Unavailable(f"sysfs: no AMD card below {root / 'class/drm'}")

    def _folders(self) -> list[Path]:
        # Found anew each time: cards come and go with driver resets and partition changes.
        cards = [path for path in (self._root / "class/drm").glob("card*") if re.fullmatch(r"card\d+", path.name)]
        cards.sort(key=lambda path: int(path.name.removeprefix("card")))
        folders = [(path / "device").resolve() for path in cards]
        return [folder for folder in folders if _text(folder / "vendor") == _AMD]

    def read(self) -> list[wire.Device]:
        """One reading per card, in the order of the card numbers."""
        folders = self._folders()
        if not folders:
            raise Unavailable(f"sysfs: the AMD cards below {self._root / 'class/drm'} have gone")
        self._stuck = {folder: thread for folder, thread in self._stuck.items() if thread.is_alive()}
        readings: dict[Path, wire.Device] = {}
        asked = [(index, folder) for index, folder in enumerate(folders) if folder not in self._stuck]
        # All in one thread: one for each card would cost more than reading it. Only when that thread is late, the cards
        # that it has not come to are read by another one.
        waiting = [folder for _, folder in asked]
        throttle, links = self._throttles.take(waiting), self._links.take(waiting)

        def more(folder: Path, reading: wire.Device) -> Figures:
            slow = self._slow.setdefault(folder, SlowFigures(str(self._root), str(folder), self._clock))
            found = slow.throttle(reading.busy_percent) if folder == throttle else {}
            return {**found, **slow.links_and_errors()} if folder == links else found

        deadline = time.monotonic() + self._timeout_s
        patience = self._timeout_s / 2
        while asked and time.monotonic() < deadline:
            reader = threading.Thread(target=_read_cards, args=(asked, readings, more), daemon=True)
            reader.start()
            reader.join(patience)
            asked = [(index, folder) for index, folder in asked if folder not in readings]
            if reader.is_alive() and asked:
                self._stuck[asked.pop(0)[1]] = reader
            patience /= 2
        return [readings.get(folder) or _silent(index, folder) for index, folder in enumerate(folders)]


def _silent(index: int, folder: Path) -> wire.Device:
    return wire.Device(time_ns=time.time_ns(), backend="sysfs", index=index, pci=pci_address(folder.name))


def _read_cards(
    cards: list[tuple[int, Path]],
    readings: dict[Path, wire.Device],
    more: Callable[[Path, wire.Device], Figures],
) -> None:
    for index, folder in cards:
        try:
            reading = _read_card(index, folder)
            readings[folder] = msgspec.structs.replace(reading, **more(folder, reading))
        except OSError:  # it went while its folder was listed
            readings[folder] = _silent(index, folder)


def _read_card(index: int, folder: Path) -> wire.Device:
    sensors = min((folder / "hwmon").glob("hwmon*"), default=folder / "hwmon/none")
    # MI300 has the present power, MI200 and earlier the average; power is in microwatts.
    power = _figure(sensors / "power1_input", 1e-6)
    if power is None:
        power = _figure(sensors / "power1_average", 1e-6)
    return wire.Device(
        time_ns=time.time_ns(),
        backend="sysfs",
        index=index,
        pci=pci_address(folder.name),
        name=_text(folder / "product_name") or None,
        vram_used_bytes=whole(_text(folder / "mem_info_vram_used")),
        vram_total_bytes=whole(_text(folder / "mem_info_vram_total")) or None,
        busy_percent=percent(_text(folder / "gpu_busy_percent")),
        memory_busy_percent=percent(_text(folder / "mem_busy_percent")),
        power_watts=power,
        temperature_celsius=_temperature(sensors),
        # In hertz; freq1 is sclk and freq2 mclk, which an APU lacks.
        core_clock_mhz=_figure(sensors / "freq1_input", 1e-6),
        memory_clock_mhz=_figure(sensors / "freq2_input", 1e-6),
    )


def _temperature(sensors: Path) -> float | None:
    """The junction's, else the edge's: MI300X has no edge sensor. The files hold millidegrees Celsius."""
    by_label = {_text(path): path for path in sensors.glob("temp*_label")}
    for label in ("junction", "edge"):
        if label in by_label:
            value = _figure(by_label[label].with_name(by_label[label].name.replace("_label", "_input")), 1e-3)
            if value is not None:
                return value
    return None


def _figure(path: Path, scale: float) -> float | None:
    return number(_text(path), scale)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        # Not every card has every file, and a suspended card answers EBUSY or EPERM.
        return None
