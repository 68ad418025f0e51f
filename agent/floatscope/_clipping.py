"""Observes how gradients are clipped by their norm, without waiting for it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from floatscope._recorder import Recorder
from floatscope._step_buffer import Clipping

if TYPE_CHECKING:
    from floatscope._gradients import GradientTap

__all__ = ["ClipObserver", "NormObserver"]


class ClipObserver:
    """Sees ``clip_grads_with_norm_(parameters, max_norm, total_norm, foreach)``."""

    def __init__(self, tap: GradientTap, recorder: Recorder, norm: NormObserver) -> None:
        self._tap, self._recorder, self._norm = tap, recorder, norm

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(zip(("parameters", "max_norm", "total_norm"), args, strict=False)) | kwargs
        parameters, table, counted = named["parameters"], self._recorder.table, True
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        elif not (counted := isinstance(parameters, list | tuple)):
            parameters = table.parameters()  # an iterator, which is not ours to use up
        ours = [p for p in parameters if table.layer_of(p) is not None]
        if not ours:
            return
        scaled = self._read(parameters)
        if scaled is None:
            return
        total, two = named["total_norm"], self._norm.is_two(named["total_norm"])
        if type(total) not in (torch.Tensor, float) or self._recorder.capturing():
            return  # a norm that is spread over the ranks: its value would take a collective operation
        buffer = self._recorder.buffer
        limit = float(named["max_norm"])
        last, buffer.clipping = buffer.clipping, None
        if two:
            carried = 0 if self._tap.is_unscaled(ours[0]) else scaled
            count = sum(p.grad is not None for p in ours) if counted else self._norm.of
            same = last is not None and (last.scaled, last.of) == (carried, count)
            # In the place of the last one, but not of the first.
            into = last.norm if last is not None and last.norm is not buffer.framework_norm else None
            norm = self._recorder.scalar("grad_norm/framework", total, into)
            smallest = min(limit, last.smallest) if same and last is not None else limit
            buffer.clipping = Clipping(norm, carried, count, limit, smallest)
            if buffer.framework_norm is None:
                buffer.framework_norm, buffer.framework_norm_scaled, buffer.framework_norm_of = norm, carried, count
        ratio = limit / (total + 1e-6)
        clipped = ratio.clamp(max=1.0) if isinstance(ratio, torch.Tensor) else min(ratio, 1.0)
        self._recorder.clipped(clipped)

    def _read(self, parameters: Sequence[torch.Tensor]) -> int | None:
        """Read their gradients before they are clipped; the scaler that they may carry the scale of, None if too late.

        That is for gradients that were used already, or those of a step that the optimizer is going to begin.
        """
        if self._tap.was_stepped(parameters):
            return None
        self._tap.begin_update()
        # With a scaler, gradients that nobody has unscaled yet still carry its scale.
        scaled = self._tap.keep_scale()
        self._tap.read(parameters, loss_scaled=scaled)
        return scaled

    def refused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``get_total_norm(tensors, ...)`` has raised, as with ``error_if_nonfinite``: nobody will use these gradients.

        A program that does not end skips them, so that nothing else shows the overflow.
        """
        given = {id(tensor) for tensor in (args[0] if args else kwargs["tensors"])}
        ours = [p for p in self._recorder.table.parameters() if p.grad is not None and id(p.grad) in given]
        if ours and self._read(ours) is not None:
            self._recorder.clipped(math.nan)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


class NormObserver:
    """Sees ``get_total_norm(tensors, norm_type, ...)``: whether a norm by which gradients are clipped is the 2-norm."""

    def __init__(self) -> None:
        self._last: weakref.ref[torch.Tensor] | None = None
        self.of = 0
        """How many tensors the last norm is of; 0 where that is not known."""

    def is_two(self, norm: object) -> bool:
        """Whether ``norm`` is the last 2-norm that was computed."""
        return self._last is not None and self._last() is norm

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        norm_type = kwargs.get("norm_type", args[1] if len(args) > 1 else 2.0)
        tensors = args[0] if args else kwargs["tensors"]
        self.of = len(tensors) if isinstance(tensors, list | tuple) else 0
        two = float(norm_type) == 2.0
        self._last = weakref.ref(result) if two and isinstance(result, torch.Tensor) else None
