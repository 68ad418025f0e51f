"""AMD cards by the kernel's own files below /sys/class/drm. Needs no library and no rights to /dev/kfd or /dev/dri."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from floatscope import wire
from floatscope._devices._figures import Unavailable, number, pci_address, percent, readable, whole
from floatscope._devices._sysfs_slow import Figures, SlowFigures, listed, text
from floatscope._devices._turns import OFTEN_S, SELDOM_S, Turns

__all__ = ["SysfsCards"]

_AMD = "0x1002"
_CARD = re.compile(r"card(\d+)")
_RELOAD_S = 60.0
"""A driver that is loaded again, or resets a hive of eight, takes its cards away for some ten seconds."""


@dataclass(slots=True)
class _Lasting:
    """What stays as it is while a card is there, once it was to be had: read again each second it would be most of the
    cost. ``slow`` are the figures that it reads in its turn, ``kept`` those that came too late for their reading."""

    slow: SlowFigures
    kept: Figures = field(default_factory=dict)
    name: str | None = None
    vram_total_bytes: int | None = None
    thermometer: str | None = None


class SysfsCards:
    """Every card of the amdgpu driver below ``root`` (normally /sys).

    A card whose driver does not answer within ``timeout_s`` has an address and no figures until it does; the others
    are read meanwhile. Without any card for ``patience_s`` it is ``Unavailable``.
    """

    def __init__(
        self,
        root: Path,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = _RELOAD_S,
    ) -> None:
        self._root = root
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._throttle_turns, self._link_turns = Turns(OFTEN_S, clock), Turns(SELDOM_S, clock)
        self._stuck: dict[Path, threading.Thread] = {}
        self._links: tuple[tuple[str, str], ...] = ()
        self._asked: dict[Path, tuple[threading.Thread, list[str | None]]] = {}
        """Devices that have not said yet whose they are."""
        self._found: dict[Path, _Lasting] = {}
        if not self._folders():
            raise Unavailable(f"sysfs: no AMD card below {root / 'class/drm'}")
        self._seen = clock()

    def _folders(self) -> list[Path]:
        """Of the devices. Cards come and go with driver resets and partition changes: then they are looked for anew."""
        drm = f"{self._root}/class/drm"
        try:
            # By os, here and below: pathlib costs ten times as much, and this is each second.
            names = [name for name in os.listdir(drm) if _CARD.fullmatch(name)]  # noqa: PTH208
        except OSError:
            names = []
        names.sort(key=lambda name: int(name.removeprefix("card")))
        links = tuple((name, _link(f"{drm}/{name}")) for name in names)
        if links == self._links and not self._asked:
            return list(self._found)
        # Not Path.resolve, which raises where links lead in a circle.
        folders = [Path(os.path.realpath(f"{drm}/{name}/device")) for name in names]
        kept = self._found if links == self._links else {}
        cards = self._of_amd(folders)
        self._found = {
            folder: kept.get(folder) or _Lasting(slow=SlowFigures(str(self._root), str(folder), self._clock))
            for folder in folders
            if folder in cards
        }
        self._links = links
        return list(self._found)

    def _of_amd(self, folders: list[Path]) -> set[Path]:
        """Those of AMD's. One that does not answer is looked at again later: it must not hold up the others."""
        deadline = time.monotonic() + self._timeout_s
        vendors: dict[Path, str | None] = dict.fromkeys(self._found, _AMD)
        self._asked = {folder: asked for folder, asked in self._asked.items() if folder in folders}
        for folder in folders:
            if folder in vendors:
                continue
            waiting, answers = self._asked.get(folder) or _ask_vendor(folder)
            waiting.join(max(0.0, deadline - time.monotonic()) if folder not in self._asked else 0.0)
            self._asked[folder] = waiting, answers
            if answers:
                vendors[folder] = answers[0]
                del self._asked[folder]
        return {folder for folder, vendor in vendors.items() if vendor == _AMD}

    def read(self) -> list[wire.Device]:
        """One reading per card, in the order of the card numbers; none while a driver is loaded again."""
        folders = self._folders()
        if folders:
            self._seen = self._clock()
        elif self._clock() - self._seen > self._patience_s:
            raise Unavailable(f"sysfs: the AMD cards below {self._root / 'class/drm'} have gone")
        self._stuck = {folder: thread for folder, thread in self._stuck.items() if thread.is_alive()}
        readings: dict[Path, wire.Device] = {}
        asked = [(index, folder) for index, folder in enumerate(folders) if folder not in self._stuck]
        # All in one thread: one for each card would cost more than reading it. Only when that thread is late, the cards
        # that it has not come to are read by another one.
        waiting = [folder for _, folder in asked]
        turns = self._throttle_turns.take(waiting), self._link_turns.take(waiting)
        deadline = time.monotonic() + self._timeout_s
        patience = self._timeout_s / 2
        while asked and time.monotonic() < deadline:
            known = asked, self._found, readings, turns, self._stuck
            reader = threading.Thread(target=_read_cards, args=known, daemon=True)
            reader.start()
            reader.join(patience)
            asked = [(index, folder) for index, folder in asked if folder not in readings]
            if reader.is_alive() and asked:
                self._stuck[asked.pop(0)[1]] = reader
            patience /= 2
        return [readings.get(folder) or _silent(index, folder) for index, folder in enumerate(folders)]


def _ask_vendor(folder: Path) -> tuple[threading.Thread, list[str | None]]:
    """A thread that reads it, and where it puts that."""
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(text(f"{folder}/vendor")), daemon=True)
    thread.start()
    return thread, answers


def _silent(index: int, folder: Path) -> wire.Device:
    return wire.Device(time_ns=time.time_ns(), backend="sysfs", index=index, pci=pci_address(folder.name))


def _read_cards(
    cards: list[tuple[int, Path]],
    found: dict[Path, _Lasting],
    readings: dict[Path, wire.Device],
    turns: tuple[Hashable, Hashable],
    stuck: dict[Path, threading.Thread],
) -> None:
    throttle, links = turns
    for index, folder in cards:
        try:
            reading, slow = _read_card(index, folder, found[folder]), found[folder].slow
            more, found[folder].kept = found[folder].kept, {}
            if folder == throttle:
                more |= slow.throttle(reading.busy_percent)
            if folder == links:
                more |= slow.links_and_errors()
            if folder in stuck:
                # Nobody waits for this reading any more, and its turn will not come again for a minute.
                found[folder].kept = more
            readings[folder] = msgspec.structs.replace(reading, **more)
        except OSError:  # it went while its folder was listed
            readings[folder] = _silent(index, folder)


def _read_card(index: int, folder: Path, lasting: _Lasting) -> wire.Device:
    # A driver that was loaded again has another number here.
    sensors = f"{folder}/hwmon/{min(listed(f'{folder}/hwmon'), default='none')}"
    if lasting.name is None:
        lasting.name = readable(text(f"{folder}/product_name"))
    if lasting.vram_total_bytes is None:
        lasting.vram_total_bytes = whole(text(f"{folder}/mem_info_vram_total")) or None
    if lasting.slow.sleeps():
        # Whatever else is asked, some kernels switch the card on for it.
        return msgspec.structs.replace(
            _silent(index, folder), name=lasting.name, vram_total_bytes=lasting.vram_total_bytes
        )
    # MI300 has the present power, MI200 and earlier the average; power is in microwatts.
    power = _figure(f"{sensors}/power1_input", 1e-6)
    if power is None:
        power = _figure(f"{sensors}/power1_average", 1e-6)
    return wire.Device(
        time_ns=time.time_ns(),
        backend="sysfs",
        index=index,
        pci=pci_address(folder.name),
        name=lasting.name,
        vram_used_bytes=whole(text(f"{folder}/mem_info_vram_used")),
        vram_total_bytes=lasting.vram_total_bytes,
        busy_percent=percent(text(f"{folder}/gpu_busy_percent")),
        memory_busy_percent=percent(text(f"{folder}/mem_busy_percent")),
        power_watts=power,
        temperature_celsius=_temperature(sensors, lasting),
        # In hertz; freq1 is sclk and freq2 mclk, which an APU lacks.
        core_clock_mhz=_figure(f"{sensors}/freq1_input", 1e-6),
        memory_clock_mhz=_figure(f"{sensors}/freq2_input", 1e-6),
    )


def _temperature(sensors: str, lasting: _Lasting) -> float | None:
    """The junction's, else the edge's: MI300X has no edge sensor. The files hold millidegrees Celsius."""
    if lasting.thermometer is not None:
        value = _figure(f"{sensors}/{lasting.thermometer}", 1e-3)
        if value is not None:
            return value
    lasting.thermometer = None
    labels = [name for name in listed(sensors) if name.startswith("temp") and name.endswith("_label")]
    by_label = {text(f"{sensors}/{name}"): name.replace("_label", "_input") for name in labels}
    for label in ("junction", "edge"):
        if label in by_label:
            value = _figure(f"{sensors}/{by_label[label]}", 1e-3)
            if value is not None:
                if label == "junction" or "junction" not in by_label:
                    lasting.thermometer = by_label[label]
                return value
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _figure(path: str, scale: float) -> float | None:
    return number(text(path), scale)
