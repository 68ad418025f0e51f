"""What changes seldom on an AMD card, or costs its driver a query: links, errors, throttling."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from floatscope._devices._figures import number, whole
from floatscope._devices._gpu_metrics import Metrics, figures_between

__all__ = ["SlowFigures", "listed", "text"]

_PAGE = 4096
"""Bytes that the kernel gives of one attribute."""
_MOST_LANES = 32
_FASTEST = 128.0
"""GT/s, of PCI Express 7.0."""
_SPEED = re.compile(r"(\d{1,3}(?:\.\d+)?) GT/s")
_ERRORS = re.compile(r"^(ue|ce): (\d+)$", re.MULTILINE)
_XGMI = "11"
"""Type of a KFD link, HSA_IOLINKTYPE_XGMI."""

Figures: TypeAlias = dict[str, float | int | None]
"""Some of ``wire.Device``, by name."""


class SlowFigures:
    """Those of the card in ``folder``, its device's, below ``root`` (normally /sys)."""

    def __init__(self, root: str, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._hops: list[str] | None = None
        self._widest: int | None = None
        self._fastest: float | None = None
        self._xgmi_links: int | None = None
        self._root = root
        self._before: tuple[float, Metrics] | None = None
        self._counted: frozenset[str] | None = None

    def sleeps(self) -> bool:
        """Whether the kernel has switched the card off: most readings would switch it on again."""
        return text(f"{self._folder}/power/runtime_status") in ("suspended", "suspending")

    def throttle(self, busy: float | None) -> Figures:
        """Of the stretch since it was last asked. A card that does nothing (``busy``, in percent) is not asked: it has
        nothing to slow down, and on some the question raises its clocks for seconds."""
        if not busy or self.sleeps():
            self._before = None
            return {}
        now, metrics = self._clock(), Metrics.of(_bytes(f"{self._folder}/gpu_metrics"))
        at, before = self._before or (now, None)
        self._before = now, metrics
        return figures_between(before, metrics, now - at)

    def links_and_errors(self) -> Figures:
        """PCI Express, XGMI and RAS."""
        if self.sleeps():
            return {}
        corrected, uncorrected = self._errors()
        return {
            **self._pcie(),
            # Not xgmi_error: reading it sets it back, for whoever else counts.
            "pcie_replays": whole(text(f"{self._folder}/pcie_replay_count")),
            "xgmi_links": self._links_by_xgmi(),
            "ecc_corrected": corrected,
            "ecc_uncorrected": uncorrected,
        }

    def _pcie(self) -> Figures:
        if self._hops is None:
            # From the card up to the root port: an Instinct card sits behind bridges of its own.
            above = (self._folder, *map(str, Path(self._folder).parents))
            self._hops = []
            for hop in above:
                if not os.path.exists(f"{hop}/max_link_width"):  # noqa: PTH110
                    break
                self._hops.append(hop)
            self._widest = min(filter(None, (_lanes(f"{hop}/max_link_width") for hop in self._hops)), default=None)
            self._fastest = min(filter(None, (_speed(f"{hop}/max_link_speed") for hop in self._hops)), default=None)
        return {
            "pcie_width": min(filter(None, (_lanes(f"{hop}/current_link_width") for hop in self._hops)), default=None),
            "pcie_speed_gts": min(
                filter(None, (_speed(f"{hop}/current_link_speed") for hop in self._hops)), default=None
            ),
            "pcie_max_width": self._widest,
            "pcie_max_speed_gts": self._fastest,
        }

    def _links_by_xgmi(self) -> int | None:
        """Counted once; None on a card that the compute driver does not show."""
        if self._xgmi_links is None:
            for node in Path(self._root, "class/kfd/kfd/topology/nodes").glob("*"):
                if _address(_properties(node)) == self._folder.rpartition("/")[2].partition(".")[0]:
                    links = [_properties(link) for link in node.glob("io_links/*")]
                    self._xgmi_links = sum(link.get("type") == _XGMI for link in links)
                    break
        return self._xgmi_links

    def _errors(self) -> tuple[int | None, int | None]:
        """Corrected and uncorrected, over all blocks of the chip; None where a single one does not tell, and where
        there are others than at the time before: while a driver starts they come one by one, and a sum of some would
        fall and rise again."""
        ras = f"{self._folder}/ras"
        totals = {"ce": 0, "ue": 0}
        files = [name for name in listed(ras) if name.endswith("_err_count")]
        for name in files:
            # While the card is reset it says "Query currently inaccessible".
            counts = dict(_ERRORS.findall(text(f"{ras}/{name}") or ""))
            if counts.keys() != totals.keys():
                return None, None
            for kind, text_of_count in counts.items():
                count = whole(text_of_count)
                if count is None:
                    return None, None
                totals[kind] += count
        before, self._counted = self._counted, frozenset(files)
        if not files or before not in (None, self._counted):
            return None, None
        return totals["ce"], totals["ue"]


def _properties(folder: Path) -> dict[str, str]:
    words = [line.split() for line in (text(f"{folder}/properties") or "").splitlines()]
    return {pair[0]: pair[1] for pair in words if len(pair) == 2}


def _address(node: dict[str, str]) -> str | None:
    """Domain, bus and device; a function above 0 numbers a partition of the card."""
    location, domain = whole(node.get("location_id")), whole(node.get("domain"))
    if not location or domain is None:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"


def _lanes(path: str) -> int | None:
    # 0 is a link that is down; 255 and 65535 are what the kernel reads from a device that does not answer.
    width = whole(text(path))
    return width if width is not None and 0 < width <= _MOST_LANES else None


def _speed(path: str) -> float | None:
    match = _SPEED.match(text(path) or "")
    speed = number(float(match[1])) if match else None
    return speed if speed is not None and 0 < speed <= _FASTEST else None


def listed(folder: str) -> list[str]:
    """Names in ``folder``; none where it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def text(path: str) -> str | None:
    """What an attribute says, without blanks around it; None where it cannot be read."""
    data = _bytes(path)
    return data.decode(errors="replace").strip() if data else None


def _bytes(path: str) -> bytes:
    # Open and read each time: an attribute that stays open is that of a device which may have gone.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _PAGE)
        finally:
            os.close(file)
    except OSError:
        # Not every card has every file, and a suspended card answers EBUSY or EPERM.
        return b""
