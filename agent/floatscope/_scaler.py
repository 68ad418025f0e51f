"""Observes a torch GradScaler: overflow steps, which it skips, and the scale that gradients carried when read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from floatscope._gradients import GradientTap, parameters_of
from floatscope._own_ops import OwnOperations
from floatscope._patches import observe
from floatscope._recorder import Recorder

__all__ = ["ScalerTap"]


class ScalerTap:
    """Has the gradients read when ``scaler`` begins to unscale them, and keeps found_inf of each optimizer.

    Whether a step was skipped is decided by found_inf: fused optimizers are called on overflow steps too.
    """

    def __init__(self, recorder: Recorder, gradients: GradientTap, scaler: torch.amp.GradScaler) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._scaler = scaler
        self._found: dict[int, tuple[torch.optim.Optimizer, list[torch.Tensor]]] = {}
        """Of each optimizer whose gradients were unscaled in this step, its flags."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Start observing the scaler's class."""
        self._gradients.keep_scale = self.keep_scale
        self._gradients.is_unscaled = self._is_unscaled
        cls = type(self._scaler)
        self._undo.append(observe(cls, "_unscale_grads_", _Unscaling(self)))
        self._undo.append(observe(cls, "update", _Updating(self)))

    def remove(self) -> None:
        """Stop observing."""
        while self._undo:
            self._undo.pop()()

    def keep_scale(self) -> bool:
        """Keep the scale of this step, as of its first use: ``update`` changes the tensor in place.

        False before the scaler's first use and for a disabled one, which has no scale. During a capture it has no
        value yet.
        """
        scale = self._scaler._scale if self._scaler.is_enabled() else None
        known = self._recorder.buffer.loss_scale is not None or self._recorder.capturing()
        if scale is not None and not known:
            with OwnOperations():
                self._recorder.buffer.loss_scale = self._recorder.keep(scale)
        return scale is not None

    def _is_unscaled(self, parameter: torch.Tensor) -> bool:
        return any(parameter is other for optimizer, _ in self._found.values() for other in parameters_of(optimizer))

    def end_step(self) -> None:
        """Keep the flags of a step whose scaler was not updated."""
        self._keep_found()

    def _keep_found(self) -> None:
        # Copies: ``update`` adds the flags of all optimizers up in the first one's tensor.
        for index, (_, flags) in self._found.items():
            self._recorder.buffer.found_inf[index] = [self._recorder.keep(flag) for flag in flags]
        self._found.clear()

    def before_unscale(self, scaler: object, optimizer: torch.optim.Optimizer) -> None:
        if scaler is self._scaler and self._gradients.index_of(optimizer) is not None:
            self._gradients.begin(optimizer)
            self.keep_scale()
            self._gradients.read_optimizer(optimizer, loss_scaled=True)

    def after_unscale(self, scaler: object, optimizer: torch.optim.Optimizer, found: dict[Any, torch.Tensor]) -> None:
        index = self._gradients.index_of(optimizer)
        if scaler is self._scaler and index is not None:
            # The tensors themselves: a sharded scaler reduces them over the ranks after this.
            self._found[index] = optimizer, list(found.values())

    @property
    def waits(self) -> bool:
        """Whether gradients were unscaled, and the update that deals with skipped optimizers is still to come."""
        return bool(self._found)

    def before_update(self, scaler: object) -> None:
        if scaler is self._scaler:
            dealt_with = [optimizer for optimizer, _ in self._found.values()]
            self._keep_found()
            self._gradients.scaler_updated()
            self._gradients.settled(*dealt_with)


class _Unscaling:
    """Sees ``_unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16)``."""

    def __init__(self, tap: ScalerTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap.before_unscale(args[0], args[1])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:  # noqa: ANN401
        self._tap.after_unscale(args[0], args[1], result)


class _Updating:
    """Sees ``update(self, new_scale)``."""

    def __init__(self, tap: ScalerTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap.before_update(args[0])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass
