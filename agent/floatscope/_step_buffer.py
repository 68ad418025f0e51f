"""What is collected during one optimizer step, until it is on its way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from floatscope._device_rows import Part, Scalar
from floatscope._sampling import Wanted
from floatscope._transit import Transit

__all__ = ["FIRST_SCALER", "Clipping", "StepBuffer", "Times"]

FIRST_SCALER = 1
"""Its number; 0 stands for none."""


class Times(Protocol):
    """Seconds by name that a card knows once it has come so far."""

    def ready(self) -> bool: ...
    def seconds(self) -> dict[str, float]: ...


class Clipping(NamedTuple):
    """Gradients were clipped together, by their 2-norm."""

    norm: Scalar
    """Theirs, just before."""
    scaled: int
    """The scaler whose loss scale it carries; 0 for none."""
    of: int
    """How many of ours they are."""
    limit: float
    """With the same factor."""
    smallest: float
    """Of the limits to which these were clipped in this step."""


@dataclass(slots=True)
class StepBuffer:
    """One optimizer step in the making. The first six fields say what is read during it."""

    step: int
    wanted: Wanted
    gradients: bool
    activations: bool
    weights: bool
    updates: bool
    histograms: bool
    cast_weights: set[int] = field(default_factory=set)
    """Layers whose weight was measured at its cast."""
    scalars: dict[str, Scalar] = field(default_factory=dict)
    """The user's."""
    own: dict[str, Scalar] = field(default_factory=dict)
    """Measured here."""
    loss_scales: dict[int, Scalar] = field(default_factory=dict)
    """By the number of the scaler, from 1."""
    scaler_of: dict[int, int] = field(default_factory=dict)
    """The scaler that has unscaled an optimizer's gradients, where it is not the first."""
    found_inf: dict[int, list[Scalar]] = field(default_factory=dict)
    """By optimizer; non-zero where its gradients were not finite and the scaler skips its step."""
    clip_coefficients: dict[torch.device | None, Scalar] = field(default_factory=dict)
    """The smallest on each device; None for those that are plain numbers."""
    raw_loss_nonfinite: dict[torch.device | None, Scalar] = field(default_factory=dict)
    """Micro-batches whose own loss was not finite, on each device."""
    parts: dict[torch.device, Sequence[Part]] = field(default_factory=dict)
    """Filled by ``Recorder.send``, like ``transits``: what is on its way, and what it will mean."""
    transits: dict[torch.device, Transit] = field(default_factory=dict)
    norm: str = "grad_norm"
    """What is made of the gradients' sum of squares, as ``Ranks.norm`` says."""
    framework_norm: Scalar | None = None
    """The 2-norm by which gradients were clipped."""
    framework_norm_scaled: int = 0
    """The scaler whose loss scale it carries; 0 for none."""
    framework_norm_of: int = 0
    """Gradients of ours in it."""
    clipping: Clipping | None = None
    """The last one; None when that was not by the 2-norm."""
    phases: Times | None = None
    """What events on a card will tell of the step's phases."""
    lost: str | None = "internal"
    """Why nothing of a device will come."""

    @property
    def has_scalars(self) -> bool:
        """Whether there is anything of a step, beside what was read."""
        return bool(self.scalars or self.own or self.clip_coefficients)
