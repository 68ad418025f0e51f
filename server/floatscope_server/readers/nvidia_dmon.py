"""``nvidia-smi dmon``: columns by spaces, their names and units in lines that begin with #."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope import wire
from floatscope_server.readers.rows import Broken, Item, LogFormat, Reading
from floatscope_server.readers.smi import MIB, byte_count, quantity, timestamp
from floatscope_server.readers.text import lines

__all__ = ["NVIDIA_DMON", "is_dmon_header"]

_KNOWN = frozenset({"pwr", "gtemp", "sm", "mem", "fb"})


def _names(text: str) -> list[str]:
    return text.removeprefix("#").split() if text.startswith("#") else []


def is_dmon_header(text: str) -> bool:
    """Whether a line names the columns; the one below it, with the units, does not."""
    names = _names(text)
    return "gpu" in names[:3] and not _KNOWN.isdisjoint(names)


def _read(chunks: Iterator[bytes]) -> Iterator[Item]:
    names: list[str] = []
    for line, text in lines(chunks):
        if text.startswith("#"):
            names = _names(text) if is_dmon_header(text) else names
            continue
        cells = text.split()
        if not names or not cells:
            continue
        if len(cells) != len(names):
            yield Broken(line=line, why=f"{len(cells)} values for {len(names)} columns")
            continue
        by_name = dict(zip(names, cells, strict=True))
        numbers = {name: value for name, cell in by_name.items() if (value := quantity(cell)) is not None}
        date = by_name.get("Date", "")
        used = numbers.get("fb")
        yield Reading(
            line=line,
            device=wire.Device(
                time_ns=timestamp(f"{date[:4]}-{date[4:6]}-{date[6:]} {by_name.get('Time', '')}") if date else 0,
                backend="nvidia-smi",
                index=int(numbers.get("gpu", 0)),
                vram_used_bytes=byte_count(used, MIB),
                busy_percent=numbers.get("sm"),
                memory_busy_percent=numbers.get("mem"),
                power_watts=numbers.get("pwr"),
                temperature_celsius=numbers.get("gtemp"),
            ),
            values={name: value for name, value in numbers.items() if name not in ("gpu", "Date", "Time")},
            faults=("ecc",) if numbers.get("dbecc", 0) > 0 else (),
        )


NVIDIA_DMON = LogFormat("nvidia-smi-dmon", _read, cards=True, cuttable=True)
