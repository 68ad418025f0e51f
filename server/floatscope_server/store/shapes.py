"""How series and histograms are cut into chunks. One that is damaged is left out, and the rest shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from floatscope import wire
from floatscope_server.store.pyramid import Shape
from floatscope_server.tiles.codec import TileError
from floatscope_server.tiles.hist import HistRows
from floatscope_server.tiles.points import Points, Records

__all__ = ["DEVICES", "FACTS", "HISTOGRAM_BLOCK", "HISTOGRAM_SHAPE", "SCALARS", "SEEN", "figures_of", "series_shape"]

_log = logging.getLogger(__name__)

HISTOGRAM_BLOCK = 16
"""Layers of a histogram tile. With the 64 of a tile of summaries one layer would be read with four times as much."""

FIGURES = (
    "vram_used_bytes",
    "busy_percent",
    "memory_busy_percent",
    "power_watts",
    "temperature_celsius",
    "allocated_bytes",
    "reserved_bytes",
    "alloc_retries",
    "ooms",
    "core_clock_mhz",
    "memory_clock_mhz",
    "pcie_width",
    "pcie_speed_gts",
    "pcie_replays",
    "xgmi_bytes_per_s",
    "ecc_corrected",
    "ecc_uncorrected",
    "throttle_power_percent",
    "throttle_thermal_percent",
    "throttle_brake_percent",
)
"""Fields of ``wire.Device`` that are series of their own, named BACKEND/INDEX/FIGURE."""

FACTS = ("pci", "name", "vram_total_bytes", "pcie_max_width", "pcie_max_speed_gts", "xgmi_links")
"""Those that stay the same while a card is there, in ``device_facts``."""

SEEN = "seen"
"""The figure of a reading that had none."""


def _joined_series(level: int, parts: Sequence[Any]) -> Any:  # noqa: ANN401 - points or records
    return Records.joined(parts) if level else Points.joined(parts)


def _decoded_series(level: int, data: bytes) -> Points | Records:
    try:
        return Records.decoded(data) if level else Points.decoded(data)
    except TileError as error:
        _log.error("a chunk of a series is left out: %s", error)
        return Records.none() if level else Points.none()


def _joined_histograms(level: int, parts: Sequence[HistRows]) -> HistRows:
    return HistRows.latest(parts) if level else HistRows.joined(parts)


def _decoded_histograms(_: int, data: bytes) -> HistRows:
    try:
        return HistRows.decoded(data)
    except TileError as error:
        _log.error("a tile of histograms is left out: %s", error)
        return HistRows.none()


SCALARS = Shape(size=(4096, 1024), fewest=512, unit=1, joined=_joined_series, decode=_decoded_series)
DEVICES = Shape(size=(4096, 1024), fewest=512, unit=1000, joined=_joined_series, decode=_decoded_series)
"""By milliseconds; levels of 8 s, 64 s and so on."""

HISTOGRAM_SHAPE = Shape(size=(2048, 2048), fewest=4096, unit=1, joined=_joined_histograms, decode=_decoded_histograms)


def series_shape(stream: str) -> Shape:
    """Of the series of ``stream``."""
    return DEVICES if stream == "gpu" else SCALARS


def figures_of(device: wire.Device) -> Iterator[tuple[str, float]]:
    """What of a reading goes into series; at least one."""
    found = [(figure, value) for figure in FIGURES if (value := getattr(device, figure)) is not None]
    yield from found or [(SEEN, 1.0)]
