"""What the recorder works with on a device: a variant of the pass, a way for rows to leave, memory for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from floatscope._batch import batch_bytes
from floatscope._device_rows import Route
from floatscope._own_ops import capturing
from floatscope._ring import Ring
from floatscope._stats import MAX_ROW_ELEMENTS, Variant, variant_for
from floatscope._streams import Streams
from floatscope._summary import BINS

__all__ = ["Backend", "ring_bytes"]

_RING_BYTES = 64 << 20
"""Most pinned memory for one device."""
_RING_LEAST_BYTES = 4 << 20
"""Enough for a small model of a thousand steps a second: the sender looks five times a second."""
_RING_STEPS = 64
"""Steps without histograms that may be under way to the sender."""
_RING_HISTOGRAMS = 8
_RING_RESERVE = 64 << 10
"""For the scalars of steps whose rows find no room."""
_ROW_BYTES, _HIST_BYTES = 80, 4 * BINS


def ring_bytes(rows: int) -> int:
    """Pinned memory for the transfers of up to ``rows`` rows a step."""
    wanted = rows * (_RING_STEPS * _ROW_BYTES + _RING_HISTOGRAMS * _HIST_BYTES)
    return min(_RING_BYTES, max(_RING_LEAST_BYTES, wanted))


def _off_the_host(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")


def _route(device: torch.device) -> Route | None:
    if not _off_the_host(device):
        return None
    return Route(lambda rows: Ring(ring_bytes(rows), reserve=_RING_RESERVE), Streams(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """How tensors are measured and how rows travel. Tests choose other ones than the device would."""

    variant: Callable[[torch.device], Variant] = variant_for
    batched: Callable[[torch.device], bool] = _off_the_host
    """Whether outputs wait for each other: on the host each is measured while it is in the cache."""
    route: Callable[[torch.device], Route | None] = _route
    """None where rows need not be transferred."""
    capturing: Callable[[], bool] = capturing
    """Whether a CUDA graph is being captured."""
    captures: Callable[[torch.device], bool] = _off_the_host
    """Whether graphs can be captured on a device."""
    row_elements: int = MAX_ROW_ELEMENTS
    batch_bytes: Callable[[torch.device], int] = batch_bytes
