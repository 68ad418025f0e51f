"""``rocm-smi`` of ROCm 4 to 7, with ``--json`` or ``--csv``: every value is a string, and names change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from floatscope import wire
from floatscope_server.readers.rows import Broken, Item, LogFormat, Reading
from floatscope_server.readers.smi import byte_count, documents, quantity
from floatscope_server.readers.text import cells, lines, whole

__all__ = ["ROCM_SMI_CSV", "ROCM_SMI_JSON", "is_rocm_header"]

_CARD = re.compile(r"card(\d+)")
_MEASURED = re.compile(r"\((?:%|W|C|B|mV|VRAM%)\)|clock speed|Activity", re.IGNORECASE)
_BUSY = ("GPU use (%)",)
_MEMORY_BUSY = (
    # ROCm 6.1 on; before that the name that reads like an occupancy is the activity of the memory controller.
    "GPU Memory Read/Write Activity (%)",
    "GPU memory use (%)",
)
_POWER = (
    "Current Socket Graphics Package Power (W)",
    "Average Graphics Package Power (W)",
    "Socket Graphics Package Power (W)",
)
_TEMPERATURE = ("Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)")
_TOTAL = ("VRAM Total Memory (B)", "Total (B)")
_USED = ("VRAM Total Used Memory (B)", "Used (B)")
_NAMES = ("Device Name", "Card Series", "Card series", "Card Model", "Card model")


def _first(card: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := quantity(card.get(name))) is not None), None)


def _reading(line: int, index: int, card: Mapping[str, str]) -> Reading:
    name = next((card[n] for n in _NAMES if card.get(n) and not card[n].startswith("0x")), None)
    pci = card.get("PCI Bus")
    return Reading(
        line=line,
        device=wire.Device(
            time_ns=0,
            backend="rocm-smi",
            index=index,
            pci=pci if pci and ":" in pci else None,
            name=None if name in (None, "N/A") else name,
            vram_used_bytes=byte_count(_first(card, _USED), 1),
            vram_total_bytes=byte_count(_first(card, _TOTAL), 1),
            busy_percent=_first(card, _BUSY),
            memory_busy_percent=_first(card, _MEMORY_BUSY),
            power_watts=_first(card, _POWER),
            temperature_celsius=_first(card, _TEMPERATURE),
        ),
        values={
            name: value
            for name, content in card.items()
            if _MEASURED.search(name) and (value := quantity(content.lstrip("("))) is not None
        },
    )


def _json(chunks: Iterator[bytes]) -> Iterator[Item]:
    for line, content in documents(lines(chunks)):
        if not isinstance(content, dict):
            yield Broken(line=line, why="the JSON does not end or is damaged")
            continue
        # "system" stands beside the cards and is none.
        for key, card in content.items():
            if (found := _CARD.fullmatch(key)) and isinstance(card, dict):
                yield _reading(line, whole(found[1]), {name: str(value) for name, value in card.items()})


def is_rocm_header(text: str) -> bool:
    """Whether a line names the columns of ``rocm-smi --csv``."""
    names = text.lower().split(",")
    return names[0].strip() == "device" and any("(%)" in n or "(b)" in n or "(w)" in n or "(c)" in n for n in names)


def _csv(chunks: Iterator[bytes]) -> Iterator[Item]:
    header: list[str] | None = None
    for line, text in lines(chunks):
        if is_rocm_header(text):
            header = [name.strip() for name in cells(text)]
            header[0] = "device"
        elif header is not None and text.startswith("card"):
            row = cells(text)
            found = _CARD.fullmatch(row[0].strip()) if row else None
            if found is None or len(row) != len(header):
                yield Broken(line=line, why=f"{len(row)} values for {len(header)} columns")
                continue
            yield _reading(line, whole(found[1]), dict(zip(header, row, strict=True)))


ROCM_SMI_JSON = LogFormat("rocm-smi-json", _json, cards=True)
ROCM_SMI_CSV = LogFormat("rocm-smi-csv", _csv, cards=True, cuttable=True)
