"""``amd-smi metric`` and ``amd-smi monitor``: JSON as a list or under ``gpu_data``, CSV, and the monitor's table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from floatscope import wire
from floatscope_server.readers.rows import Broken, Item, LogFormat, Reading
from floatscope_server.readers.smi import GIB, MIB, byte_count, documents, quantity, timestamp
from floatscope_server.readers.text import cells, lines

__all__ = ["AMD_SMI_CSV", "AMD_SMI_JSON", "AMD_SMI_MONITOR", "is_amd_header", "is_monitor_header"]

_BUSY = ("usage.gfx_activity", "gfx_activity", "gfx", "gfx_util", "GFX%", "GFX_UTIL")
_MEMORY_BUSY = ("usage.umc_activity", "umc_activity", "MEM%", "MEM_UTIL")
_POWER = ("power.socket_power", "socket_power", "power_usage", "POWER")
_TEMPERATURE = (
    "temperature.hotspot",
    "hotspot",
    "hotspot_temperature",
    "temperature.edge",
    "edge",
    "GPU_T",
    "GPU_TEMP",
)
_USED = ("mem_usage.used_vram", "used_vram", "vram_used", "VRAM_USED")
_TOTAL = ("mem_usage.total_vram", "total_vram", "vram_total", "VRAM_TOTAL")
_MOST_GIB = 2048.0
"""A total below this is in GiB, as ``monitor`` prints it by default; in MiB no card of this kind is that small."""
_DEEPEST = 30
"""Levels of a card; the tool prints four."""
_UNCORRECTABLE = ("ecc.total_uncorrectable_count", "total_uncorrectable_count", "double_bit_ecc")
_USAGE = re.compile(r"([\d.]+)\s*/\s*([\d.]+)\s*([GM])B")


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and "value" not in value:
            if prefix.count(".") < _DEEPEST:
                yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield prefix + name, value


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _first(values: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _reading(line: int, index: int, card: Mapping[str, Any]) -> Reading:
    values = {name: value for name, content in card.items() if (value := quantity(content)) is not None}
    used, total = _first(values, _USED), _first(values, _TOTAL)
    unit = GIB if total is not None and total < _MOST_GIB else MIB
    memory = _first(values, _MEMORY_BUSY)
    if memory is None and "power_usage" in card:
        # In the monitor's CSV "mem" is an activity, in that of metric a temperature.
        memory = values.get("mem")
    # "throttle_status" is no fault: at its power cap a healthy card under load says THROTTLED.
    faults = ("ecc",) if (_first(values, _UNCORRECTABLE) or 0) > 0 else ()
    clock = card.get("timestamp")
    return Reading(
        line=line,
        device=wire.Device(
            time_ns=0 if clock is None else timestamp(str(clock)),
            backend="amd-smi",
            index=index,
            pci=_words(card.get("bus.bdf") or card.get("bdf")),
            name=_words(card.get("asic.market_name") or card.get("market_name")),
            vram_used_bytes=byte_count(used, unit),
            vram_total_bytes=byte_count(total, unit),
            busy_percent=_first(values, _BUSY),
            memory_busy_percent=memory,
            power_watts=_first(values, _POWER),
            temperature_celsius=_first(values, _TEMPERATURE),
        ),
        values={name: value for name, value in values.items() if name not in ("gpu", "GPU", "timestamp")},
        faults=faults,
    )


def _cards(content: Any, depth: int = 0) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - JSON
    """The cards of a document: a list of them, or under "gpu_data"; ``watch`` puts lists in lists."""
    if depth > _DEEPEST:
        return
    if isinstance(content, list):
        for item in content:
            yield from _cards(item, depth + 1)
    elif isinstance(content, dict):
        if "gpu_data" in content:
            yield from _cards(content["gpu_data"], depth + 1)
        elif "gpu" in content:
            yield content


def _json(chunks: Iterator[bytes]) -> Iterator[Item]:
    for line, content in documents(lines(chunks)):
        if content is None:
            yield Broken(line=line, why="the JSON does not end or is damaged")
            continue
        for card in _cards(content):
            index = quantity(card["gpu"])
            if index is not None:
                yield _reading(line, int(index), dict(_flat(card)))


def is_amd_header(text: str) -> bool:
    """Whether a line names the columns of ``amd-smi ... --csv``."""
    names = [name.strip() for name in text.split(",")]
    known = (*_BUSY, *_POWER, *_USED, *_TEMPERATURE)
    return "gpu" in names[:3] and any(name in names for name in known)


def _csv(chunks: Iterator[bytes]) -> Iterator[Item]:
    header: list[str] | None = None
    for line, text in lines(chunks):
        if is_amd_header(text):
            header = [name.strip() for name in text.split(",")]
        elif header is not None and "," in text:
            found = cells(text)
            card = dict(zip(header, found, strict=False))
            index = quantity(card["gpu"]) if "gpu" in card else None
            if len(found) != len(header) or index is None:
                yield Broken(line=line, why=f"{len(found)} values for {len(header)} columns")
                continue
            yield _reading(line, int(index), card)


def is_monitor_header(text: str) -> bool:
    """Whether a line names the columns of ``amd-smi monitor``."""
    names = text.split()
    return "GPU" in names[:2] and len(names) > 2 and any(n in names for n in ("POWER", "GPU_T", "GFX%", "VRAM_USED"))


_CELL = re.compile(r"N/A|[\d.]+\s*/\s*[\d.]+\s*[GM]B|[-\d.]+(?:\s?(?:°C|W|MHz|%|[GMK]B|Mb/s))?|\S+")


def _monitor(chunks: Iterator[bytes]) -> Iterator[Item]:
    header: list[str] | None = None
    for line, text in lines(chunks):
        if is_monitor_header(text):
            header = text.replace("VRAM_USED/TOTAL", "VRAM_USAGE").split()
            continue
        if header is None or not text.strip()[:1].isdigit():
            continue
        found = _CELL.findall(text)
        if len(found) != len(header):
            yield Broken(line=line, why=f"{len(found)} values for {len(header)} columns")
            continue
        card = dict(zip(header, found, strict=True))
        usage = _USAGE.search(card.pop("VRAM_USAGE", ""))
        if usage is not None:
            factor = GIB // MIB if usage[3] == "G" else 1
            card |= {"VRAM_USED": str(float(usage[1]) * factor), "VRAM_TOTAL": str(float(usage[2]) * factor)}
        index = quantity(card["GPU"])
        if index is not None:
            yield _reading(line, int(index), card)


AMD_SMI_JSON = LogFormat("amd-smi-json", _json, cards=True)
AMD_SMI_CSV = LogFormat("amd-smi-csv", _csv, cards=True, cuttable=True)
AMD_SMI_MONITOR = LogFormat("amd-smi-monitor", _monitor, cards=True, cuttable=True)
