"""How far an optimizer moves parameters, and how much of that rounding swallows, on a sample of each parameter.

The sample is fixed: every k-th element in memory, at most 4096, with an odd k, so that it does not stay in a few
columns of a matrix. A copy of whole parameters could take more memory than a card has left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from floatscope._gradients import rate_of
from floatscope._guard import Guard
from floatscope._own_ops import OwnOperations
from floatscope._readable import local_part, why_not
from floatscope._recorder import Recorder
from floatscope._stats._bounds import has_memory

__all__ = ["SAMPLE", "UpdateTap", "sample_of"]

_updating = Guard("updates were measured", charge="updates")

SAMPLE = 4096
"""Most elements of a parameter that are compared."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sample_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A view of at most 4096 elements, the same ones for tensors of the same strides; None where memory has gaps or
    is gone."""
    if not has_memory(tensor):
        return None
    dense = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if not dense.is_contiguous():
        return None
    step = -(-tensor.numel() // SAMPLE) if tensor.numel() > SAMPLE else 1
    return dense.view(-1)[:: step | 1]


@dataclass(slots=True)
class _Group:
    """Parameters of one device and dtype; ``judged`` ones have a gradient that can be compared with the change."""

    judged: bool
    layers: list[int] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    samples: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    before: torch.Tensor | None = None
    moved: torch.Tensor | None = None
    """Whether the gradient of an element was not zero."""


class UpdateTap:
    """Told by the gradients' tap when an optimizer is about to step and when it has."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begun: dict[int, list[_Group]] = {}

    def before(self, optimizer: torch.optim.Optimizer, *, gradients: bool) -> None:
        """Copy the samples. ``gradients``: those of the parameters are the ones that will be used."""
        if not self._recorder.buffer.updates:
            return
        with _updating, OwnOperations():
            groups: dict[tuple[torch.device, torch.dtype, bool], _Group] = {}
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._add(groups, parameter, gradients=gradients, lr=rate_of(group))
            for begun in groups.values():
                begun.before = torch.cat(begun.samples)
                if begun.judged:
                    begun.moved = torch.cat(begun.gradients) != 0
                begun.samples, begun.gradients = [], []
            self._begun[id(optimizer)] = list(groups.values())

    def _add(
        self,
        groups: dict[tuple[torch.device, torch.dtype, bool], _Group],
        parameter: torch.Tensor,
        *,
        gradients: bool,
        lr: Any,  # noqa: ANN401 (a number or a tensor)
    ) -> None:
        layer = self._recorder.table.layer_of(parameter)
        if layer is None or (gradients and parameter.grad is None):
            return
        local = local_part(parameter).detach()
        if local.numel() == 0 or why_not(local):
            return
        sample = sample_of(local)
        if sample is None:
            self._recorder.table.unseen(layer, "update not observed: a parameter has gaps in memory")
            return
        gradient = self._gradient(parameter, local) if gradients and not _is_zero(lr) else None
        key = (local.device, local.dtype, gradient is not None)
        group = groups.setdefault(key, _Group(gradient is not None))
        group.layers.append(layer)
        group.parameters.append(parameter)
        group.sizes.append(sample.numel())
        group.samples.append(sample)
        if gradient is not None:
            group.gradients.append(gradient)

    def _gradient(self, parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor | None:
        assert parameter.grad is not None, "the caller has asked"
        gradient = local_part(parameter.grad)
        if gradient.layout != torch.strided or gradient.stride() != local.stride() or gradient.dtype != local.dtype:
            return None
        return None if why_not(gradient) else sample_of(gradient)

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare with the samples that were copied."""
        begun = self._begun.pop(id(optimizer), None)
        if begun is None:
            return
        with _updating, OwnOperations():
            for group in begun:
                self._compare(group)

    def _compare(self, group: _Group) -> None:
        samples = [sample_of(local_part(parameter).detach()) for parameter in group.parameters]
        now = [sample for sample in samples if sample is not None]
        before = group.before
        assert before is not None, "copied when the group was made"
        if [sample.numel() for sample in now] != group.sizes:
            return  # the optimizer gave them another shape
        after = torch.cat(now)
        wide = torch.float64 if after.dtype == torch.float64 else torch.float32
        self._measure("update", group, after.to(wide) - before.to(wide))
        if group.moved is not None:
            integers = _INTEGERS[after.element_size()]
            changed = (after.view(integers) != before.view(integers)).to(torch.float32)
            # What had no gradient is no number, so that the rest counts alone.
            self._measure("swallowed", group, torch.where(group.moved, changed, torch.nan))

    def _measure(self, kind: str, group: _Group, sampled: torch.Tensor) -> None:
        self._recorder.record_all(kind, group.layers, torch.split(sampled, group.sizes))

    def end_step(self) -> None:
        """Forget what an optimizer began and did not end."""
        self._begun.clear()


def _is_zero(rate: Any) -> bool:  # noqa: ANN401
    return isinstance(rate, float | int) and rate == 0
