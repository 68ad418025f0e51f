"""Formats that were declared and not executed, or that the chip cannot execute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from floatscope import wire
from floatscope._chips import FP8

__all__ = ["FormatMismatch", "Mismatch", "PrecisionMismatch", "find_formats", "find_precision"]

_DECLARES_FP8 = re.compile(r"fp8|float8", re.IGNORECASE)
_OCP = frozenset({"e4m3fn", "e5m2"})
_FNUZ = frozenset({"e4m3fnuz", "e5m2fnuz"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionMismatch:
    """A module that says FP8 by its type and met no FP8 operand when it ran: warning."""

    group_steps: int = 1 << 30
    """All layers are one alert."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 0
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatMismatch:
    """The same bits read as the other variant of E4M3 are off by exactly 2x: critical."""

    group_steps: int = 1 << 30
    """All layers are one alert."""
    hold: int = 0
    """Steps that the condition must last before it fires."""
    keep: int = 0
    """Steps without it before the alert resolves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A layer whose formats are not what they should be; ``kind`` of tensor and ``format`` as executed."""

    layer: int
    kind: str
    format: str
    reason: str


def find_precision(layers: Iterable[wire.Layer]) -> list[Mismatch]:
    """Layers that declare FP8 and executed something else, in execution order. One that has not run, or of whose
    operands nothing is known, is left out."""
    found = []
    for layer in sorted(layers, key=lambda layer: layer.order):
        if layer.order < 0 or not layer.operands or not _DECLARES_FP8.search(layer.module_type):
            continue
        if not any(operand.format in _OCP | _FNUZ for operand in layer.operands):
            operand = next((o for o in layer.operands if o.kind in ("act", "act_in")), layer.operands[0])
            found.append(Mismatch(layer=layer.index, kind=operand.kind, format=operand.format, reason="declared_fp8"))
    return found


def find_formats(layers: Iterable[wire.Layer], fp8: FP8 | None) -> list[Mismatch]:
    """Layers with an FP8 operand that the chip has no instruction for, in execution order; ``fp8`` None: not known."""
    wrong = {"fnuz": _OCP, "ocp": _FNUZ, "none": _OCP | _FNUZ}.get(fp8 or "", frozenset())
    reason = {"fnuz": "ocp_on_fnuz", "ocp": "fnuz_on_ocp", "none": "no_fp8"}.get(fp8 or "", "")
    found = []
    for layer in sorted(layers, key=lambda layer: layer.order):
        operand = next((o for o in layer.operands if o.format in wrong), None)
        if operand is not None:
            found.append(Mismatch(layer=layer.index, kind=operand.kind, format=operand.format, reason=reason))
    return found
