"""What the store hands on after a commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from floatscope import wire

__all__ = ["ALL_RANKS", "Observation"]

ALL_RANKS = -1
"""The rank under which is stored what belongs to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One committed body of one writer, decoded once; layer indices in it are the run's already.

    ``layers`` is the run's table at that moment, by index. ``merged`` are scalars of all ranks together that this block
    completed.
    """

    run_id: int
    run: str
    attempt: int
    rank: int
    writer: str
    seq: int
    world: int
    body: wire.Body
    layers: Mapping[int, wire.Layer]
    merged: tuple[wire.Scalars, ...] = ()
