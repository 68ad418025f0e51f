"""A machine with every kind of card, for each of the libraries that read it; and a place where it is /sys."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys

__all__ = ["KINDS", "LINK_AND_ERRORS", "Kind", "Machine", "apart", "as_sys"]

GIB = 1 << 30

LINK_AND_ERRORS = {
    "pcie_width": 16,
    "pcie_speed_gts": 32.0,
    "pcie_max_width": 16,
    "pcie_max_speed_gts": 32.0,
    "pcie_replays": 3,
    "ecc_corrected": 8,
    "ecc_uncorrected": 0,
}
"""What the kernel's files tell of a card of ``fake_sys`` beside the figures of each second."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A PCI device: its name, its memory, and the file in which its driver tells power."""

    name: str
    vram_gib: int
    power: str | None

    @property
    def instinct(self) -> bool:
        return "Instinct" in self.name

    @property
    def apu(self) -> bool:
        return not self.vram_gib


KINDS = [
    *[Kind("AMD Instinct MI300X OAM", 192, "power1_input")] * 8,
    # A card of two dies, each a device; the first tells the power of both.
    *[Kind("AMD Instinct MI250", 64, "power1_average"), Kind("AMD Instinct MI250", 64, None)] * 2,
    Kind("AMD Radeon RX 7900 XTX", 24, "power1_average"),
    # Its memory is the host's, and it tells neither busy share nor power.
    Kind("AMD Radeon Graphics", 0, None),
]


class Machine:
    """8 MI300X, 2 MI250 (two dies each), an RX 7900 and an APU, below ``system``.

    ``cards`` is where the stand-in of AMD SMI reads of them.
    """

    def __init__(self, system: FakeSys, cards: Path, kinds: Sequence[Kind] = KINDS) -> None:
        self._system = system
        self.kinds = kinds
        self.cards = cards
        system.driver_is_live()
        self._folders = [system.card(place, self.address(place)) for place in range(len(self.kinds))]
        for place, kind in enumerate(self.kinds):
            folder, sensors = self._folders[place], self._sensors(place)
            # What ROCm SMI wants of a card before it is one.
            system.write(folder, vbios_version="113-M3000100-102", device="0x74a1", unique_id=f"{place + 1:016x}")
            system.write(sensors, name="amdgpu", in0_label="vddgfx", in0_input=850)
            system.write(folder, product_name=kind.name, mem_info_vram_total=kind.vram_gib * GIB)
            system.write(sensors, power1_input=None)
            if not kind.instinct:
                system.write(sensors, temp1_label="edge", temp1_input=47_000)
            if kind.apu:
                system.write(folder, gpu_busy_percent=None, mem_busy_percent=None, mem_info_vram_used=None)
                system.write(sensors, temp2_label=None, temp2_input=None, freq2_label=None, freq2_input=None)
        self._topology()
        self.lost: frozenset[int] = frozenset()
        self.set(busy=80, watts=512, used_gib=1, celsius=50)

    @staticmethod
    def address(place: int) -> str:
        return f"0000:{5 + 16 * place:02x}:00.0"

    def _sensors(self, place: int) -> Path:
        return self._folders[place] / f"hwmon/hwmon{place + 3}"

    def set(self, *, busy: int, watts: int, used_gib: int, celsius: int, lost: Sequence[int] = ()) -> None:
        """What the first card tells from now on, each further one 1 more.

        ``lost`` cards tell nothing, in each of the ways that drivers have.
        """
        self.busy, self.watts, self.used_gib, self.celsius, self.lost = busy, watts, used_gib, celsius, frozenset(lost)
        for place, kind in enumerate(self.kinds):
            if kind.apu:
                continue
            folder, sensors, power = self._folders[place], self._sensors(place), kind.power
            gone = place in self.lost
            self._system.write(folder, gpu_busy_percent=0xFFFF if gone else busy + place)
            self._system.write(folder, mem_info_vram_used="N/A" if gone else (used_gib + place) * GIB)
            self._system.write(sensors, temp2_input="N/A" if gone else (celsius + place) * 1000)
            if power is not None:
                self._system.write(sensors, **{power: -1 if gone else (watts + place) * 1_000_000})
        whole = self.cards.with_suffix(".new")
        whole.write_text("".join(map(self._smi_line, range(len(self.kinds)))))
        whole.rename(self.cards)

    def _smi_line(self, place: int) -> str:
        kind = self.kinds[place]
        bus = f"0 {5 + 16 * place:x} 0 0 "
        if kind.apu or place in self.lost:
            return f"{bus} -1 -1  -1 -1  -1 -1  {kind.name}\n"
        current = self.watts + place if kind.power == "power1_input" else -1
        average = self.watts + place if kind.power == "power1_average" else -1
        memory = f"{(self.used_gib + place) * GIB} {kind.vram_gib * GIB}"
        return f"{bus} {self.busy + place} 55  {memory}  {current} {average}  {kind.name}\n"

    def expected(self, place: int) -> dict[str, object]:
        """What is to be read of that card now."""
        kind, gone = self.kinds[place], place in self.lost
        there = not gone and not kind.apu
        return {
            "pci": self.address(place),
            "name": kind.name,
            "vram_total_bytes": kind.vram_gib * GIB or None,
            "vram_used_bytes": (self.used_gib + place) * GIB if there else None,
            "busy_percent": float(self.busy + place) if there else None,
            "power_watts": float(self.watts + place) if there and kind.power is not None else None,
            "temperature_celsius": 47.0 if kind.apu else None if gone else float(self.celsius + place),
            "core_clock_mhz": 2100.0,
            "memory_clock_mhz": None if kind.apu else 1300.0,
        }

    def _topology(self) -> None:
        """What the compute driver shows: Debian's build of ROCm SMI ends the process where a part of it is missing."""
        kfd = self._system.root / "class/kfd/kfd"
        (kfd / "proc").mkdir(parents=True)
        (self._system.root / "class/hwmon").mkdir()
        shape = "simd_count 1216\narray_count 32\nsimd_arrays_per_engine 1\ncu_per_simd_array 10\nsimd_per_cu 4"
        for node in range(len(self.kinds) + 1):
            folder = kfd / f"topology/nodes/{node}"
            for links in ("io_links", "p2p_links"):
                (folder / links).mkdir(parents=True)
            location = (5 + 16 * (node - 1)) << 8 if node else 0
            self._system.write(
                folder,
                gpu_id=51000 + node if node else 0,
                name="gfx942" if node else "",
                properties=f"{shape}\nhive_id 0\nlocation_id {location}\ndomain 0\ngfx_target_version 90402",
            )


def apart(system: Path) -> tuple[list[str], str]:
    """What makes the tree ``system`` the /sys of the command behind it: a mount namespace, which nobody else sees.

    Nothing, and why, on a machine that permits none.
    """
    for folder in ("devices/system", "fs/cgroup"):
        (system / folder).mkdir(parents=True, exist_ok=True)
    # torch asks for the processors there. ROCm SMI keeps a mutex for each card in /dev/shm.
    mounts = [f"mount --rbind /sys/{at} {shlex.quote(f'{system}/{at}')}" for at in ("devices/system", "fs/cgroup")]
    mounts += [f"mount --rbind {shlex.quote(str(system))} /sys", "mount -t tmpfs none /dev/shm", 'exec "$@"']
    why = ""
    for rights in ([], ["--map-root-user"]):
        begin = ["unshare", *rights, "--mount", "--propagation", "private", "sh", "-ec", "\n".join(mounts), "sh"]
        tried = subprocess.run([*begin, "true"], capture_output=True, text=True, check=False, timeout=60)
        if tried.returncode == 0:
            return begin, ""
        why = tried.stderr.strip()
    return [], f"user {os.geteuid()} may not mount here, not even in a namespace: {why}"


def as_sys(system: Path, command: Sequence[str]) -> list[str]:
    """``command`` where the tree ``system`` is /sys. Leaves the test out, and says why, where that is not permitted."""
    begin, why = apart(system)
    if why:
        pytest.skip(why)
    return [*begin, *command]
