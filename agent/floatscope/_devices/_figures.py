"""What a driver's answer is worth: numbers, or None where the driver means "not available"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from floatscope import wire

__all__ = ["Cards", "Unavailable", "carry", "fill", "number", "pci_address", "percent", "readable", "whole"]

_NOT_AVAILABLE = frozenset((0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF))
_MOST = 1 << 63
"""No counter of bytes, errors or microwatts comes near; beyond it a driver's answer is garbage, and fits no column."""
_LONGEST_NAME = 128
_PAGE = 4096
_PCI = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")


class Unavailable(Exception):  # noqa: N818  # a finding, not a fault
    """A source of readings that does not exist here; the text says why."""


class Cards(Protocol):
    """One source of readings, opened once and read every second."""

    def read(self) -> list[wire.Device]:
        """One reading of every card. Raises ``Unavailable`` when the source has gone."""


def number(answer: object, scale: float = 1.0) -> float | None:
    """``answer`` times ``scale``; None for whatever drivers say instead of "not available".

    Those are -1, 0xFFFF, 0xFFFFFFFF, 2^64 - 1, "N/A", "" and None: none of them may ever look like a measurement, nor
    may what is 2^63 or more.
    """
    if isinstance(answer, str):
        try:
            answer = int(answer)
        except ValueError:
            return None
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return None
    # Not a number is not below anything; a whole number of Python's may be larger than any float.
    if not 0 <= answer < _MOST or answer in _NOT_AVAILABLE:
        return None
    return answer * scale


def whole(answer: object) -> int | None:
    """``number`` for counts and bytes."""
    value = number(answer)
    return None if value is None else int(value)


def percent(answer: object) -> float | None:
    """``number`` for shares; None beyond 100."""
    value = number(answer)
    return None if value is None or value > 100 else float(value)


def readable(name: str | None) -> str | None:
    """A card's name on one line and not longer than a name is: it comes from the board, as whoever made it wrote it."""
    kept = "".join(character for character in (name or "")[:_PAGE] if character.isprintable()).strip()
    return None if kept in ("", "N/A") else kept[:_LONGEST_NAME]


def pci_address(text: str) -> str | None:
    """``text`` as "domain:bus:device.function" in lower case, "0000:c1:00.0"; None when it is no address.

    NVIDIA writes eight digits of domain, the kernel four, and some leave out the function.
    """
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device = (int(part, 16) for part in match.groups()[:3])
    return f"{domain:04x}:{bus:02x}:{device:02x}.{match[4] or 0}"


def fill(reading: wire.Device, other: wire.Device) -> wire.Device:
    """``reading`` with its missing figures from ``other``; the backend then names both.

    What is read seldom adds no name: a card whose backend changed with every reading would be two.
    """
    missing = {
        name: value
        for name in reading.__struct_fields__
        if getattr(reading, name) is None and (value := getattr(other, name)) is not None
    }
    if not missing:
        return reading
    backend = f"{reading.backend}+{other.backend}" if missing.keys() - wire.READ_SELDOM else reading.backend
    return msgspec.structs.replace(reading, backend=backend, **missing)


def carry(earlier: Iterable[wire.Device], later: Iterable[wire.Device]) -> tuple[wire.Device, ...]:
    """``later`` with what is read seldom from ``earlier``, where it has none: nobody will send that one."""
    before = {(reading.index, reading.pci): reading for reading in earlier}

    def found(reading: wire.Device) -> dict[str, Any]:
        same = before.get((reading.index, reading.pci))
        names = [name for name in wire.READ_SELDOM if same is not None and getattr(reading, name) is None]
        return {name: value for name in names if (value := getattr(same, name)) is not None}

    return tuple(msgspec.structs.replace(reading, **found(reading)) for reading in later)
