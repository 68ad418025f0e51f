"""Pinned host memory that finished steps are copied into: bounded, allocated once, and never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

__all__ = ["Extent", "Ring", "pinned"]

_WORD = 8
_VIEWS = 256


def pinned(words: int) -> torch.Tensor:
    """int64 [words] that a device can copy into while the host goes on."""
    return torch.empty(words, dtype=torch.int64, device="cpu", pin_memory=True)


class Extent:
    """A piece of a ring: ``host`` is int64 [words] until ``give_back``, which any thread may call, at any time."""

    __slots__ = ("end", "given_back", "host")

    def __init__(self, host: torch.Tensor, end: int) -> None:
        self.host = host
        self.end = end
        self.given_back = False

    def give_back(self) -> None:
        """Let the ring use it again; further calls do nothing."""
        # One store: the ring itself is touched by the training thread alone, so nobody needs a lock.
        self.given_back = True


class Ring:
    """``nbytes`` of host memory, handed out in order and taken back in order.

    ``reserve`` bytes of it are for small things only: those that ask for no more than that.
    """

    def __init__(self, nbytes: int, *, reserve: int, allocate: Callable[[int], torch.Tensor] = pinned) -> None:
        self._host = allocate(nbytes // _WORD)
        self._reserve = reserve // _WORD
        self._taken: deque[Extent] = deque()
        self._views: dict[tuple[int, int], torch.Tensor] = {}
        """Pieces by their first word and the one after their last. Steps of one size come by the same places again, and
        slicing is what takes longest of ``take``."""
        self._begin = self._end = 0
        """Words in use are those from the first to the second; it wraps at the end of the memory."""

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._host.nbytes

    def take(self, nbytes: int) -> Extent | None:
        """A contiguous piece, or None when what is free is too little. Never waits."""
        words = -(-nbytes // _WORD)
        self._reclaim()
        place = self._place(words + (self._reserve if words > self._reserve else 0))
        if place is None:
            return None
        self._end = place + words
        extent = Extent(self._view(place, self._end), self._end)
        self._taken.append(extent)
        return extent

    def _view(self, begin: int, end: int) -> torch.Tensor:
        view = self._views.get((begin, end))
        if view is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            view = self._views[begin, end] = self._host[begin:end]
        return view

    def _reclaim(self) -> None:
        while self._taken and self._taken[0].given_back:
            self._begin = self._taken.popleft().end
        if not self._taken:
            self._begin = self._end = 0

    def _place(self, words: int) -> int | None:
        size = self._host.numel()
        if not self._taken:
            return 0 if words <= size else None
        if self._end > self._begin:
            if words <= size - self._end:
                return self._end
            # Strictly less: with the two equal the ring would look empty.
            return 0 if words < self._begin else None
        return self._end if words < self._begin - self._end else None
