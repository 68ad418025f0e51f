"""The numbers that one writer gives to its layers, and the run's for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["LayerMap", "Renumbered"]

_SPARSE = -2
"""First int32 of a stored map: the writer's numbers follow, then the run's. Without it a map is dense, as the first
release stored it: the run's number for each of the writer's, -1 for none."""

_KNOWN, _KNOWN_BYTES = 16, 64 << 10
"""Lists of layers whose numbers are kept, each of so many bytes at most: an agent sends the same ones in each block."""


class Renumbered(NamedTuple):
    """The run's number for each layer of a list, -1 where the writer has not named it; ``stored``: as uint32 if it has
    named all of them, else None."""

    rows: npt.NDArray[np.int32]
    stored: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMap:
    """``theirs`` ascending, int32; ``ours`` likewise. Room goes with the layers named, not with their numbers."""

    theirs: npt.NDArray[np.int32]
    ours: npt.NDArray[np.int32]
    _known: dict[bytes, Renumbered] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def empty(cls) -> LayerMap:
        """No layer has been named."""
        return cls(theirs=np.empty(0, np.int32), ours=np.empty(0, np.int32))

    @classmethod
    def of(cls, stored: bytes) -> LayerMap:
        """As stored in ``Writer.layer_map``."""
        numbers = np.frombuffer(stored, "<i4")
        if len(numbers) and numbers[0] == _SPARSE:
            theirs, ours = numbers[1:].reshape(2, -1)
            return cls(theirs=theirs, ours=ours)
        theirs = np.flatnonzero(numbers >= 0).astype(np.int32)
        return cls(theirs=theirs, ours=numbers[theirs])

    def stored(self) -> bytes:
        """For ``Writer.layer_map``."""
        return np.concatenate((np.array([_SPARSE]), self.theirs, self.ours)).astype("<i4").tobytes()

    def __len__(self) -> int:
        return len(self.theirs)

    def has(self, theirs: int, ours: int) -> bool:
        """Whether the writer's layer ``theirs`` is the run's ``ours``."""
        return bool(self[np.array([theirs], np.uint32)][0] == ours)

    def __getitem__(self, theirs: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int32]:
        """The run's number for each of ``theirs``, -1 where the writer has not named it."""
        if not len(self):
            return np.full(len(theirs), -1, np.int32)
        at = np.minimum(np.searchsorted(self.theirs, theirs), len(self) - 1)
        return np.where(self.theirs[at] == theirs, self.ours[at], np.int32(-1))

    def renumbered(self, layers: bytes) -> Renumbered:
        """Of ``layers``, uint32 numbers of the writer's."""
        found = self._known.get(layers)
        if found is None:
            rows = self[np.frombuffer(layers, "<u4")]
            found = Renumbered(rows, rows.astype("<u4").tobytes() if (rows >= 0).all() else None)
            if len(layers) <= _KNOWN_BYTES:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[layers] = found
        return found

    def named(self, layers: Mapping[int, int]) -> LayerMap:
        """This map with the run's numbers for further ``layers``, or other ones; itself if that changes nothing."""
        theirs = np.fromiter(layers, np.int32, len(layers))
        ours = np.fromiter(layers.values(), np.int32, len(layers))
        if (self[theirs.astype(np.uint32)] == ours).all():
            return self
        kept = ~np.isin(self.theirs, theirs)
        theirs = np.concatenate((self.theirs[kept], theirs))
        ours = np.concatenate((self.ours[kept], ours))
        order = np.argsort(theirs)
        return LayerMap(theirs=theirs[order], ours=ours[order])
