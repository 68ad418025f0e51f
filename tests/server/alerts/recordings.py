"""Recordings of cards, as the rules see them."""

from __future__ import annotations

from collections.abc import Iterable

from floatscope import wire
from floatscope_server.observation import Observation


def recorded(samples: Iterable[wire.Device | tuple[wire.Device, ...]]) -> list[Observation]:
    """A recording without a run: each row, of one card or of several, is its step."""
    return [
        Observation(
            run_id=1,
            run="run",
            attempt=1,
            rank=0,
            writer="w",
            seq=row + 1,
            world=1,
            body=wire.Body(first_step=row, steps=1, devices=devices if isinstance(devices, tuple) else (devices,)),
            layers={},
        )
        for row, devices in enumerate(samples)
    ]
