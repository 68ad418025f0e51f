"""Collects what the taps read during one optimizer step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from floatscope import wire
from floatscope._config import Config
from floatscope._guard import Guard
from floatscope._layers import LayerTable
from floatscope._operands import Operand, format_of
from floatscope._own_ops import OwnOperations
from floatscope._record import encodable
from floatscope._stats import Row, measure, merge_

__all__ = ["Part", "Recorder", "Scalar", "StepBuffer"]

_logging = Guard("a scalar was logged")
_measuring = Guard("a tensor was measured")
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

Scalar = float | torch.Tensor
"""A number, or a one-element tensor whose value is fetched later."""


@dataclass(slots=True)
class Part:
    """Statistics of one tensor, or of several of one layer and kind that were merged on the device."""

    kind: str
    layer: int
    row: Row
    format: str
    loss_scaled: bool
    """The tensor carried the loss scale when it was measured."""
    cast_scale: Scalar = 1.0
    """Factor at the cast that comes, on top of a loss scale."""
    in_norm: bool = True
    """Belongs to the gradient norm: False for evaluations of a closure that a later one replaced."""
    sharded: bool = False
    """This rank holds a part of the tensor only."""


@dataclass(slots=True)
class StepBuffer:
    """One optimizer step in the making. The first four fields say what is read during it."""

    step: int
    gradients: bool
    activations: bool
    weights: bool
    histograms: bool
    parts: list[Part] = field(default_factory=list)
    merged: dict[tuple[str, int], Part] = field(default_factory=dict)
    """Parts that micro-batches are merged into."""
    scalars: dict[str, Scalar] = field(default_factory=dict)
    """The user's."""
    own: dict[str, Scalar] = field(default_factory=dict)
    """Measured here."""
    loss_scale: torch.Tensor | None = None
    found_inf: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """By optimizer; non-zero where its gradients were not finite and the scaler skips its step."""
    clip_coefficients: dict[torch.device | None, Scalar] = field(default_factory=dict)
    """The smallest on each device; None for those that are plain numbers."""
    raw_loss_nonfinite: torch.Tensor | None = None

    def clipped(self, coefficient: Scalar) -> None:
        """Note the coefficient of one more clipping, which may happen any number of times in a step."""
        if isinstance(coefficient, torch.Tensor):
            known = self.clip_coefficients.get(coefficient.device)
            if isinstance(known, torch.Tensor):
                coefficient = torch.minimum(known, coefficient)
            self.clip_coefficients[coefficient.device] = coefficient
        else:
            # NaN when a norm was; with min() that would depend on the order.
            self.clip_coefficients[None] = float(np.minimum(self.clip_coefficients.get(None, 1.0), coefficient))


class Recorder:
    """What the taps share: the step in progress, the layer table and the sampling intervals."""

    def __init__(self, table: LayerTable, config: Config) -> None:
        self.table = table
        self._config = config
        self.buffer = self._start(config.first_step)

    def _start(self, step: int) -> StepBuffer:
        def due(interval: int) -> bool:
            return interval > 0 and step % interval == 0

        return StepBuffer(
            step=step,
            gradients=due(self._config.gradients_every),
            activations=due(self._config.activations_every),
            weights=due(self._config.weights_every),
            histograms=due(self._config.histograms_every),
        )

    def next_step(self) -> StepBuffer:
        """The finished step; a new one begins."""
        finished, self.buffer = self.buffer, self._start(self.buffer.step + 1)
        return finished

    def record(
        self,
        kind: str,
        layer: int,
        tensor: torch.Tensor,
        *,
        cast: Operand | None = None,
        loss_scaled: bool = False,
        merge: bool = False,
    ) -> bool:
        """Measure ``tensor`` now, as one part or merged into the part of its layer and kind. Never waits.

        ``cast`` is the cast that the tensor is about to undergo; without one it counts as stored in its own dtype.
        Says whether it was measured; the table keeps the reason why not.
        """
        reason = "it could not be measured"
        with _measuring:
            tensor, sharded = _local_part(tensor)
            tensor = _stored_values(tensor)
            reason = _why_not(tensor)
            if not reason:
                self._measure(kind, layer, tensor, cast, loss_scaled=loss_scaled, merge=merge, sharded=sharded)
                return True
        self.table.unseen(layer, f"{kind} not observed: {reason or 'it could not be measured'}")
        return False

    def _measure(
        self,
        kind: str,
        layer: int,
        tensor: torch.Tensor,
        cast: Operand | None,
        *,
        loss_scaled: bool,
        merge: bool,
        sharded: bool,
    ) -> None:
        row = measure(tensor, histogram=self.buffer.histograms)
        scale = cast.scale if cast is not None else 1.0
        if isinstance(scale, torch.Tensor):
            scale = scale.detach().clone()
        if cast is not None:
            operand = wire.Operand(kind=kind, format=cast.format, role="cast", scaling=cast.scaling)
        else:
            stored = format_of(tensor.dtype)
            assert stored is not None, "_why_not has asked"
            operand = wire.Operand(kind=kind, format=stored, scaling="loss" if loss_scaled else "none")
        self.table.met(layer, operand)
        earlier = self.buffer.merged.get((kind, layer))
        if merge and earlier is not None:
            earlier.row = merge_(earlier.row, row)
            earlier.cast_scale = scale
            return
        part = Part(kind, layer, row, operand.format, loss_scaled, scale, sharded=sharded)
        self.buffer.parts.append(part)
        if merge:
            self.buffer.merged[kind, layer] = part

    def log(self, scalars: Mapping[str, object]) -> None:
        """Attach the user's scalars to the step in progress; one that is no number costs no other."""
        for name, value in scalars.items():
            with _logging, OwnOperations():
                self.buffer.scalars[encodable(name)] = scalar_of(name, value)


def scalar_of(name: str, value: object) -> Scalar:
    """``value`` as a number, or as a copy on its device for one that would have to be waited for.

    ``ValueError`` for something that is no single number.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"scalar {name!r}: expected one number, got a tensor of shape {tuple(value.shape)}")
        if value.device.type == "meta":
            raise ValueError(f"scalar {name!r}: a tensor on the meta device has no value")
        # A copy, since the caller may go on working in place.
        value = value.detach().reshape(()).to(torch.float64, copy=True)
        return float(value) if value.device.type == "cpu" else value
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"scalar {name!r}: expected one number, got {type(value).__name__} ({error})") from None


def _local_part(tensor: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """This rank's part of ``tensor``, and whether others hold more of it. No collective operation."""
    # Importing DTensor takes over a second; without the import there is none.
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return tensor, False
    local: torch.Tensor = tensor.to_local()
    return local, not all(placement.is_replicate() for placement in tensor.placements)


def _stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Of a sparse tensor the elements that it stores.

    Rows of a gradient that occur twice are not added up first: coalescing would wait for the device.
    """
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    return tensor.values() if tensor.layout in _COMPRESSED else tensor


def _why_not(tensor: torch.Tensor) -> str:
    """Why ``tensor`` cannot be measured; empty when it can."""
    if tensor.device.type == "meta":
        return "a tensor on the meta device has no values"
    if tensor.is_nested or tensor.layout != torch.strided:
        return f"{'a nested tensor' if tensor.is_nested else tensor.layout}"
    return "" if format_of(tensor.dtype) is not None else f"{tensor.dtype} is no format that is known"
