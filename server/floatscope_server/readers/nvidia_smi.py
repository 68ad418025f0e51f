"""``nvidia-smi --query-gpu=... --format=csv``, with or without units in the cells."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope import wire
from floatscope_server.readers.rows import Broken, Item, LogFormat, Reading
from floatscope_server.readers.smi import GIB, MIB, byte_count, quantity, timestamp
from floatscope_server.readers.text import cells, lines

__all__ = ["NVIDIA_SMI_CSV", "is_nvidia_header"]

_NAME = re.compile(r"\s*([\w.]+)\s*(?:\[(.*)\])?\s*")
_BYTES = {"MiB": MIB, "GiB": GIB, "KiB": 1 << 10}
_KNOWN = ("utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu")
_ECC = "ecc.errors.uncorrected"


def _columns(text: str) -> list[tuple[str, str, str]]:
    """For each column its name, its unit and how the file writes it."""
    columns = []
    for cell in text.split(","):
        found = _NAME.fullmatch(cell)
        columns.append((found[1], found[2] or "", cell.strip()) if found else (cell.strip(), "", cell.strip()))
    return columns


def is_nvidia_header(text: str) -> bool:
    """Whether a line names the columns of a query."""
    names = {name for name, _, _ in _columns(text)}
    return any(name in names for name in _KNOWN)


def _bytes(cell: str | None, unit: str) -> int | None:
    value = quantity(cell)
    if cell is None:
        return None
    return byte_count(value, next((size for name, size in _BYTES.items() if name in cell or name in unit), MIB))


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    columns: list[tuple[str, str, str]] | None = None
    for line, text in lines(chunks):
        if is_nvidia_header(text):
            columns = _columns(text)
            continue
        if columns is None or "," not in text:
            continue
        found = [cell.strip() for cell in cells(text)]
        if len(found) != len(columns):
            yield Broken(line=line, why=f"{len(found)} values for {len(columns)} columns")
            continue
        by_name = {name: cell for (name, _, _), cell in zip(columns, found, strict=True)}
        units = {name: unit for name, unit, _ in columns}
        index = quantity(by_name.get("index", "0"))
        uncorrected = [quantity(cell) or 0 for name, cell in by_name.items() if name.startswith(_ECC)]
        power = by_name.get("power.draw", by_name.get("power.draw.instant"))
        yield Reading(
            line=line,
            device=wire.Device(
                time_ns=timestamp(by_name.get("timestamp", "")),
                backend="nvidia-smi",
                index=int(index or 0),
                pci=by_name.get("pci.bus_id", by_name.get("gpu_bus_id")),
                name=by_name.get("name", by_name.get("gpu_name")),
                vram_used_bytes=_bytes(by_name.get("memory.used"), units.get("memory.used", "")),
                vram_total_bytes=_bytes(by_name.get("memory.total"), units.get("memory.total", "")),
                busy_percent=quantity(by_name.get("utilization.gpu")),
                memory_busy_percent=quantity(by_name.get("utilization.memory")),
                power_watts=quantity(power),
                temperature_celsius=quantity(by_name.get("temperature.gpu")),
            ),
            values={
                written: value
                for (name, _, written), cell in zip(columns, found, strict=True)
                if name not in ("timestamp", "index", "uuid", "name", "pci.bus_id")
                and (value := quantity(cell)) is not None
            },
            faults=("ecc",) if any(uncorrected) else (),
        )


NVIDIA_SMI_CSV = LogFormat("nvidia-smi-csv", _read, cards=True, cuttable=True)
