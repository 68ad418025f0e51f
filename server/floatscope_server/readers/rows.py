"""What readers make of a file: rows of scalars, happenings, readings of cards, extremes of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from floatscope import wire

__all__ = ["Broken", "Extreme", "Happening", "Item", "LogFormat", "Named", "Reading", "Row"]


@dataclass(slots=True, kw_only=True)
class Row:
    """One record of a training log.

    ``values`` are under the file's own names, ``meaning`` under those that the rules know (see ``names``). ``line`` is
    counted from 1. ``restart``: the training began anew before this row. ``records`` of the file are in it; 0: it was
    made from the lines around it.
    """

    line: int
    step: int
    values: dict[str, float]
    meaning: dict[str, float]
    restart: bool = False
    records: int = 1


@dataclass(slots=True, kw_only=True)
class Happening:
    """Something that a line of text says without a number: a hang, a scaler at its minimum."""

    line: int
    event: wire.Event


@dataclass(slots=True, kw_only=True)
class Reading:
    """One reading of one card. ``values`` are under the file's own names; ``faults`` may hold "ecc": memory errors that
    could not be corrected."""

    line: int
    device: wire.Device
    values: dict[str, float]
    faults: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Extreme:
    """The largest magnitude of one tensor of one layer. ``kind`` is one of ``wire.KINDS``; ``absmax`` may be NaN or
    infinite. ``role`` and ``scaling`` are those of ``wire.Operand``. ``under``: share of the non-zero elements that
    round to zero, None where it is not known. ``values`` as in ``Row``.
    """

    line: int
    step: int
    layer: str
    kind: str
    format: str
    absmax: float
    role: str = "stored"
    scaling: str = "none"
    under: float | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Broken:
    """A line that begins like a record and cannot be read; ``why`` is a phrase."""

    line: int
    why: str


@dataclass(slots=True, kw_only=True)
class Named:
    """The file's format, better known now than from its beginning."""

    format: str


Item = Row | Happening | Reading | Extreme | Broken | Named


@dataclass(frozen=True, slots=True)
class LogFormat:
    """``name`` is that of the output's ``format``; ``read`` takes the bytes of a file in pieces of any size.

    ``late``: so many steps may come between a row and another of an earlier step, since several writers share the file.
    ``cards``: it holds readings of cards, and no training. ``cuttable``: a line that is cut off may still look whole,
    of a number the first digits. ``more``: names that records may show it to have instead.
    """

    name: str
    read: Callable[[Iterator[bytes]], Iterator[Item]]
    late: int = 0
    cards: bool = False
    cuttable: bool = False
    more: tuple[str, ...] = ()
