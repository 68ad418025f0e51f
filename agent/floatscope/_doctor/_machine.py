"""The facts about a machine that verdicts are passed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Card", "DeviceFile", "Link", "Machine", "Torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One hop of PCI Express on the way to a card; None where the kernel does not say."""

    address: str
    width: int | None
    max_width: int | None
    speed: float | None
    """GT/s per lane"""
    max_speed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An AMD card as the kernel shows it."""

    pci: str
    name: str | None = None
    gfx: str | None = None
    """Its architecture ("gfx942"), from the KFD node of the same address."""
    vram_bytes: int | None = None
    visible_bytes: int | None = None
    """The part of it that the processor can address, which is the size of the PCI BAR."""
    busy_percent: float | None = None
    compute_partition: str | None = None
    memory_partition: str | None = None
    links: tuple[Link, ...] = ()
    xgmi_peers: int = 0
    hive: int = 0
    """Cards of the same hive are joined by XGMI; 0 is none."""
    ecc: bool | None = None
    """Whether ECC of the registers and caches is on."""
    nodes: int = 0
    """KFD nodes at this address: partitions of one card share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A device file that a ROCm program opens."""

    path: str
    group: int
    allowed: bool
    """Whether this process may read and write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The torch that a training would import."""

    version: str
    hip: str | None = None
    cuda: str | None = None
    devices: int | None = None
    """Cards that torch can use; None where nobody asked it."""
    chips: tuple[str, ...] = ()
    """Architecture of each ("gfx942:sramecc+:xnack-", "sm_90")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that ``examine`` knows. A default is what a machine without any card has."""

    environment: Mapping[str, str] = field(default_factory=dict)
    pci_cards: int = 0
    """AMD display or processing devices on the PCI bus, with or without a driver."""
    driver: str | None = None
    """State of the amdgpu module ("live"); None without one."""
    driver_version: str | None = None
    rocm: str | None = None
    """Version of the system's ROCm, "7.0.2"."""
    cards: tuple[Card, ...] = ()
    smi_cards: int | None = None
    """Cards that AMD SMI shows through pyrsmi; None where it was not asked or did not answer."""
    smi_problem: str | None = None
    nvidia: bool = False
    device_files: tuple[DeviceFile, ...] = ()
    kfd: bool = False
    """Whether /dev/kfd is there."""
    user: int = 0
    groups: tuple[int, ...] = ()
    group_names: Mapping[int, str] = field(default_factory=dict)
    container: str | None = None
    """What says that this is a container, None outside."""
    shm_bytes: int | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    """Soft limits of this process as proc(5) names them; infinity is unlimited."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """ROCm's own libraries for training ("rccl") -> the version that their file names carry."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed distributions: normalised name -> version."""
    cuda_built: tuple[str, ...] = ()
    """Distributions whose compiled parts want NVIDIA's libraries and not AMD's."""
    kernel_options: str = ""
    torch: Torch | None = None
    bandwidth: tuple[tuple[str, float], ...] = ()
    """Chip and measured bytes per second of a copy on each card, reads and writes counted."""
    tested_with: str | None = None
    """The ROCm, driver and torch of the last self-test, None without one."""

    @property
    def rocm_torch(self) -> bool:
        """Whether torch is a ROCm build."""
        return self.torch is not None and self.torch.hip is not None

    @property
    def amd(self) -> bool:
        """Whether this is, or was meant to be, a machine with AMD cards."""
        return bool(self.cards or self.pci_cards or self.driver or self.rocm_torch)

    @property
    def dies(self) -> int:
        """Devices that a ROCm program could find: dies and partitions count one each.

        A container that was given some of the cards sees the kernel's files of all: those whose compute node is hidden,
        or whose render node is not there, are somebody else's.
        """
        cards = self.cards
        if self.container is not None and any(card.nodes for card in cards):
            cards = tuple(card for card in cards if card.nodes)
        dies = sum(max(card.nodes, 1) for card in cards)
        renders = sum(file.path.startswith("/dev/dri/") for file in self.device_files)
        return min(dies, renders) if self.container is not None and renders else dies

    @property
    def chips(self) -> tuple[str, ...]:
        """Architectures of the cards, as far as anybody says: torch first, whose cards a training uses."""
        if self.torch is not None and self.torch.chips:
            return tuple(chip.partition(":")[0] for chip in self.torch.chips)
        return tuple(chip for card in self.cards if (chip := card.gfx or card.name) is not None)

    @property
    def stack(self) -> str:
        """What a numerical result may depend on, as one line."""
        torch = self.torch
        parts = {
            "driver": self.driver_version,
            "rocm": self.rocm,
            "torch": torch and torch.version,
            "hip": torch and torch.hip,
            "cuda": torch and torch.cuda,
        }
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
