"""The rows of one step of a device, on their way to the host or there already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope._ring import Extent
from floatscope._stats import WORDS, RowValues
from floatscope._summary import BINS, Floats

__all__ = ["Arrival", "Copying", "Here", "Transit"]


class Arrival(NamedTuple):
    """What came from a device: its used rows, and its scalars (float64 [n])."""

    rows: RowValues
    numbers: Floats


class Transit(Protocol):
    """A device's rows on their way to the host."""

    @property
    def nbytes(self) -> int:
        """Host memory, in bytes."""

    @property
    def lost(self) -> str | None:
        """Why the rows, but not the scalars, were left behind."""

    def ready(self) -> bool:
        """Whether ``resolve`` would not wait."""

    def resolve(self) -> Arrival:
        """The values; the host memory goes back. Waits for the copy. At most once."""


def _arrival(block: NDArray[np.int64], hist: NDArray[np.uint32] | None, numbers: int) -> Arrival:
    return Arrival(RowValues(block[numbers:].reshape(-1, len(WORDS)), hist), block[:numbers].view(np.float64))


@dataclass(frozen=True, slots=True)
class Here:
    """Rows that are on the host already."""

    block: NDArray[np.int64]
    hist: NDArray[np.uint32] | None
    numbers: int
    lost: None = None

    @property
    def nbytes(self) -> int:
        return self.block.nbytes + (self.hist.nbytes if self.hist is not None else 0)

    def ready(self) -> bool:
        return True

    def resolve(self) -> Arrival:
        return _arrival(self.block, self.hist, self.numbers)


class Copying:
    """Rows on their way into a piece of the ring, which goes back when they were read or nobody wants them."""

    def __init__(self, extent: Extent, end: int, numbers: int, lost: str | None) -> None:
        self._extent = extent
        self._end = end
        self._numbers = numbers
        self.lost = lost
        self.nbytes = extent.host.nbytes
        self.event: torch.Event | None = None

    def ready(self) -> bool:
        return self.event is None or bool(self.event.query())

    def resolve(self) -> Arrival:
        if self.event is not None:
            self.event.synchronize()
        host = self._extent.host.numpy()
        hist = host[self._end :].view(np.uint32).reshape(-1, BINS).copy() if len(host) > self._end else None
        arrival = _arrival(host[: self._end].copy(), hist, self._numbers)
        self._extent.give_back()
        return arrival

    def __del__(self) -> None:
        # A copy that is still under way is followed, on its stream, by whatever is copied into the same memory next.
        self._extent.give_back()
