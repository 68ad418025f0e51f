"""What the amdgpu driver's binary ``gpu_metrics`` tells of throttling and of XGMI.

Layouts: https://github.com/torvalds/linux/blob/v6.16/drivers/gpu/drm/amd/include/kgd_pp_interface.h. What the firmware
does not report is left at all ones.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from floatscope._devices._figures import number, percent, whole

__all__ = ["Metrics", "figures_between"]

_HEADER = struct.Struct("<HBB")
"""structure_size, format_revision, content_revision"""
_RESIDENCY = struct.Struct("<6I")
_RESIDENCY_AT = {6: 32, 7: 40, 8: 40}
"""v1.6 to v1.8: a counter of cycles, and how many of them PROCHOT, PPT, the socket's, the regulators' and the memory's
temperature held the clocks down. v1.4 and v1.5 have a throttle status that is always 0."""
_XGMI = struct.Struct("<16Q")
_XGMI_AT = {4: 104, 5: 176, 6: 128, 7: 136, 8: 136}
"""Kilobytes read over each of eight links, then written."""
_STATUS = struct.Struct("<Q")
_STATUS_AT = {3: 112}
"""v1.3: the state at this moment, as bits that are the same for all chips (SMU_THROTTLER_..._BIT in amdgpu_smu.h)."""

_POWER_BITS = (1 << 32) - 1
"""Power limits from bit 0 on, current limits from 16 on."""
_BRAKE_BITS = 0b11 << 46
"""PROCHOT_CPU and PROCHOT_GFX"""
_THERMAL_BITS = ((1 << 46) - 1) & ~_POWER_BITS
_KILOBYTE = 1000
_MOST_CYCLES = 1 << 31
"""More than between two readings: the counters have begun anew."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """One reading. ``residency``: cycles in all, and with PROCHOT, at the power limit, too hot in three places."""

    residency: tuple[int, ...] | None = None
    xgmi_bytes: tuple[int | None, ...] = ()
    """Read over each link, then written; None for one that is not there."""
    status: int | None = None

    @classmethod
    def of(cls, data: bytes) -> Metrics:
        """Of the file's bytes; all None where its layout is not known, or it is cut off."""
        if len(data) < _HEADER.size:
            return cls()
        size, layout, revision = _HEADER.unpack_from(data)
        # What lies behind the structure is not of it, and less than that was cut off.
        if layout != 1 or size > len(data):
            return cls()
        data = data[:size]
        return cls(_residency(data, revision), _xgmi_bytes(data, revision), _status(data, revision))


def _fields(layout: struct.Struct, at: int | None, data: bytes) -> tuple[int, ...]:
    return () if at is None or len(data) < at + layout.size else layout.unpack_from(data, at)


def _residency(data: bytes, revision: int) -> tuple[int, ...] | None:
    counts = _fields(_RESIDENCY, _RESIDENCY_AT.get(revision), data)
    return counts if counts and all(number(count) is not None for count in counts) else None


def _xgmi_bytes(data: bytes, revision: int) -> tuple[int | None, ...]:
    counts = [whole(count) for count in _fields(_XGMI, _XGMI_AT.get(revision), data)]
    known = any(count is not None for count in counts)
    return tuple(None if count is None else count * _KILOBYTE for count in counts) if known else ()


def _status(data: bytes, revision: int) -> int | None:
    (status,) = _fields(_STATUS, _STATUS_AT.get(revision), data) or (None,)
    return None if number(status) is None else status


def figures_between(before: Metrics | None, now: Metrics, seconds: float) -> dict[str, float | int | None]:
    """Figures of ``wire.Device`` from two readings that are ``seconds`` apart; None where that takes both and there is
    no ``before``."""
    power: float | None = None
    thermal: float | None = None
    brake: float | None = None
    if now.status is not None:
        power, thermal, brake = (
            100.0 if now.status & bits else 0.0 for bits in (_POWER_BITS, _THERMAL_BITS, _BRAKE_BITS)
        )
    elif now.residency is not None and before is not None and before.residency is not None:
        # 32 bits, which wrap after 50 days of milliseconds.
        cycles, *held = ((b - a) % (1 << 32) for a, b in zip(before.residency, now.residency, strict=True))
        if 0 < cycles < _MOST_CYCLES:
            prochot, limit, *heat = held
            brake, power = percent(100 * prochot / cycles), percent(100 * limit / cycles)
            # Together they may have held for longer than each, by how much nobody tells.
            thermal = percent(100 * max(heat) / cycles)
    xgmi = None
    if before is not None and seconds > 0:
        # By link: the count of one that comes and goes is that of its whole life.
        links = zip(before.xgmi_bytes, now.xgmi_bytes, strict=False)
        moved = [b - a for a, b in links if a is not None and b is not None]
        xgmi = number(sum(moved) / seconds) if moved and min(moved) >= 0 else None
    return {
        "throttle_power_percent": power,
        "throttle_thermal_percent": thermal,
        "throttle_brake_percent": brake,
        "xgmi_bytes_per_s": xgmi,
    }
