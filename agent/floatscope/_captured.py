"""Observes what is captured in a CUDA graph: rows that the captured launches write with each replay.

During a capture nothing runs, and nothing may be allocated for good: the rows are there before. Tensors of a capture
are not read again later, so their statistics are merged where they are computed, whichever step it is; when the step
ends, outside the graph, the rows of the kinds that are due are handed on, and all are made rows of no elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from floatscope._device_rows import FromAmax
from floatscope._operands import Operand
from floatscope._placement import Placement
from floatscope._stats import Rows, Variant

if TYPE_CHECKING:
    from floatscope._recorder import Recorder

__all__ = ["CapturedPart", "CapturedRows"]


class CapturedPart(NamedTuple):
    """What is known of the tensors that are merged into one row."""

    kind: str
    layer: int
    format: str
    loss_scaled: int
    placement: Placement


_written_by_graphs: list[Rows] = []
"""Kept for good: nobody tells when a graph is gone, and until then each replay writes to them, closed or not."""


class _DeviceRows:
    def __init__(self, capacity: int, device: torch.device) -> None:
        self.rows = Rows(capacity, device)
        self.scale_values = torch.ones(capacity, dtype=torch.float64, device=device).unbind()
        self.scales: dict[int, float | torch.Tensor | FromAmax] = {}
        """Factors at the casts, by place; a tensor is one of ``scale_values``, which the next replay overwrites."""
        self.places: dict[CapturedPart, int] = {}
        self.views: list[tuple[torch.Tensor, torch.Tensor]] = []
        """By place; making one takes microseconds."""


class CapturedRows:
    """Rows on each device of a model, written by the ``variant`` of the device."""

    def __init__(self, variant: Callable[[torch.device], Variant]) -> None:
        self._variant = variant
        self.held = False
        """Whether they stay as they are for now, when a step ends that is not the replays'."""
        self._devices: dict[torch.device, _DeviceRows] = {}

    def reserve(self, device: torch.device, capacity: int) -> None:
        """Have rows on ``device``, enough for ``capacity`` layers and kinds.

        Once, and not during a capture: they must outlive every graph.
        """
        if device not in self._devices:
            # A part of another format, or with a loss scale, has a row of its own.
            self._devices[device] = _DeviceRows(2 * capacity, device)

    def measure(self, tensor: torch.Tensor, part: CapturedPart, cast: Operand | None = None) -> str:
        """Have each replay merge ``tensor``, about to undergo ``cast``, into the row of ``part``.

        Says why that cannot be, or nothing. No host synchronisation, and temporary memory from the graph's own pool
        only.
        """
        present = self._devices.get(tensor.device)
        if present is None:
            return "it was captured in a CUDA graph right after the model came to this device"
        place = present.places.get(part)
        if place is None:
            if len(present.places) == present.rows.capacity:
                return "the CUDA graphs of this model hold more tensors than there are rows"
            place = present.places[part] = len(present.places)
            if place == 0:
                _written_by_graphs.append(present.rows)
            present.views.append((present.rows.words[place], present.rows.hist[place]))
        self._variant(tensor.device).measure(tensor, *present.views[place])
        scale = 1.0 if cast is None else cast.scale
        if isinstance(scale, torch.Tensor):
            present.scale_values[place].copy_(scale.detach().reshape(()))
            present.scales[place] = present.scale_values[place]
        elif scale is None:
            present.scales[place] = FromAmax(cast is not None and cast.power_of_two)
        else:
            present.scales[place] = float(scale)
        return ""

    def hand_on(self, recorder: Recorder) -> None:
        """A step ends, outside the graphs: ``recorder`` adopts the rows of kinds that are due, others are cleared."""
        if self.held:
            return
        left: list[torch.Tensor] = []
        for present in self._devices.values():
            for part, place in present.places.items():
                if recorder.buffer.gradients if part.kind == "grad" else recorder.buffer.activations:
                    words, hist = present.views[place]
                    recorder.adopt(
                        part.kind,
                        part.layer,
                        words,
                        hist,
                        format_=part.format,
                        loss_scaled=part.loss_scaled,
                        cast_scale=present.scales[place],
                        placement=part.placement,
                    )
                else:
                    left += present.views[place]
            if left:
                torch._foreach_zero_(left)
                left.clear()
