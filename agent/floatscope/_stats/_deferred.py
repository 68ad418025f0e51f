"""A variant that is not ready yet: plain torch until it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from floatscope._guard import Guard
from floatscope._log import logger
from floatscope._stats._reference import Reference
from floatscope._stats._rows import Plan, Rows, Variant

__all__ = ["Deferred"]


class Deferred:
    """Plain torch, until ``ready`` was called with what makes another variant, which takes over at the next use.

    ``ready`` may be called in any thread. What it is given is called in the thread that measures, outside of a capture:
    loading code onto the device elsewhere could end somebody's capture of a graph with an error.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._variant: Variant = Reference()
        self._make: Callable[[], Variant] | None = None
        self._reason_then = ""

    @property
    def name(self) -> str:
        """That of the variant in use."""
        return self._variant.name

    @property
    def samples_histogram(self) -> bool:
        """That of the variant in use."""
        return self._variant.samples_histogram

    def ready(self, make: Callable[[], Variant], reason: str) -> None:
        """Let the variant of ``make`` take over."""
        self._reason_then, self._make = reason, make

    def plan(self, at: Sequence[int]) -> _Plan:
        """A plan that changes over when the variant does."""
        return _Plan(self, at)

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        """Merge the statistics of ``tensor`` into one row."""
        self.current().measure(tensor, words, hist)

    def current(self) -> Variant:
        """The variant in use."""
        make = self._make
        if make is not None and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            self._make = None
            with Guard("loading the statistics kernels"):
                self._variant = make()
                self.reason = self._reason_then
                logger.info("statistics are computed by %s from here on: %s", self._variant.name, self.reason)
        return self._variant


class _Plan:
    def __init__(self, owner: Deferred, at: Sequence[int]) -> None:
        self._owner, self._at = owner, at
        self._of: Variant | None = None
        self._plan: Plan

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        variant = self._owner.current()
        if variant is not self._of:
            self._plan, self._of = variant.plan(self._at), variant
        self._plan.run(rows, tensors, histogram=histogram)
