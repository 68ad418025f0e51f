"""Observes what is captured in a CUDA graph: rows that the captured launches write with each replay.

During a capture nothing runs, and nothing may be allocated for good: the rows are there before. Tensors of a capture
are not read again later, so their statistics are merged where they are computed, whichever step it is; when the step
ends, outside the graph, the rows of the kinds that are due are handed on, and all are made rows of no elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch

from floatscope._stats import Rows, Variant

__all__ = ["CapturedPart", "CapturedRow", "CapturedRows"]


class CapturedPart(NamedTuple):
    """What is known of the tensors that are merged into one row."""

    kind: str
    layer: int
    format: str
    loss_scaled: bool
    sharded: bool


class CapturedRow(NamedTuple):
    """A row to be copied and cleared now: ``words`` int64 [10], ``hist`` int32 [512]."""

    part: CapturedPart
    words: torch.Tensor
    hist: torch.Tensor
    cast_scale: float | torch.Tensor
    """float64 [] if it is a tensor, which the next replay overwrites."""


class _DeviceRows:
    def __init__(self, capacity: int, device: torch.device) -> None:
        self.rows = Rows(capacity, device)
        self.scales = torch.ones(capacity, dtype=torch.float64, device=device)
        self.places: dict[CapturedPart, int] = {}
        self.views: list[tuple[torch.Tensor, torch.Tensor]] = []
        """By place; making one takes microseconds."""
        self.kept_scales: dict[int, float | None] = {}
        """By place; None where the scale is a tensor, whose value lies in ``scales``."""


class CapturedRows:
    """Rows on each device of a model, written by the ``variant`` of the device."""

    def __init__(self, variant: Callable[[torch.device], Variant]) -> None:
        self._variant = variant
        self.held = False
        """Whether they stay as they are for now, when a step ends that is not the replays'."""
        self._devices: dict[torch.device, _DeviceRows] = {}

    def reserve(self, device: torch.device, capacity: int) -> None:
        """Have ``capacity`` rows on ``device``. Once, and not during a capture: they must outlive every graph."""
        if device not in self._devices:
            self._devices[device] = _DeviceRows(capacity, device)

    def measure(self, tensor: torch.Tensor, part: CapturedPart, cast_scale: float | torch.Tensor = 1.0) -> str:
        """Have each replay merge ``tensor`` into the row of ``part``; why that cannot be, or nothing.

        No host synchronisation, and temporary memory from the graph's own pool only.
        """
        present = self._devices.get(tensor.device)
        if present is None:
            return "it was captured in a CUDA graph right after the model came to this device"
        place = present.places.get(part)
        if place is None:
            if len(present.places) == present.rows.capacity:
                return "the CUDA graphs of this model hold more tensors than there are rows"
            place = present.places[part] = len(present.places)
            present.views.append((present.rows.words[place], present.rows.hist[place]))
        self._variant(tensor.device).measure(tensor, *present.views[place])
        if isinstance(cast_scale, torch.Tensor):
            present.scales[place].copy_(cast_scale.detach().reshape(()))
            present.kept_scales[place] = None
        else:
            present.kept_scales[place] = cast_scale
        return ""

    def collect(self, kinds: Collection[str]) -> Iterator[CapturedRow]:
        """The rows of ``kinds``. Those nothing was merged into since ``clear`` have 0 in their word "tensors"."""
        for present in () if self.held else self._devices.values():
            for part, place in present.places.items():
                if part.kind in kinds:
                    scale = present.kept_scales[place]
                    words, hist = present.views[place]
                    yield CapturedRow(part, words, hist, present.scales[place] if scale is None else scale)

    def clear(self) -> None:
        """Make rows of no elements of all that graphs write to."""
        for present in () if self.held else self._devices.values():
            if present.places:
                present.rows.clear_(len(present.places), histogram=True)
