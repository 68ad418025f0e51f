"""Observes torch's GradScalers: overflow steps, which they skip, and the scale that gradients carried when read."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import torch

from floatscope._gradients import GradientTap, parameters_of
from floatscope._own_ops import OwnOperations
from floatscope._patches import observe
from floatscope._recorder import Recorder
from floatscope._step_buffer import FIRST_SCALER

__all__ = ["ScalerTap"]


class _Unscaled(NamedTuple):
    """An optimizer whose gradients were unscaled in this step, by which scaler, and the flags it got."""

    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    flags: list[torch.Tensor]


class ScalerTap:
    """Has gradients read when a scaler begins to unscale them, and keeps found_inf of each optimizer.

    Whether a step was skipped is decided by found_inf: fused optimizers are called on overflow steps too. There may be
    several scalers, as of two models in adversarial training; they are numbered in the order of their first use, and
    what a backward pass computes carries the scale of the one that has scaled last.
    """

    def __init__(self, recorder: Recorder, gradients: GradientTap, scaler: torch.amp.GradScaler) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._scalers = weakref.WeakSet([scaler])
        self._numbers: weakref.WeakKeyDictionary[torch.amp.GradScaler, int] = weakref.WeakKeyDictionary()
        self._last: Callable[[], torch.amp.GradScaler | None] = weakref.ref(scaler)
        """The one that has scaled last."""
        self._found: dict[int, _Unscaled] = {}
        """By optimizer."""
        self._observed: set[type] = set()
        self._seen_scaling: set[type] = set()
        """Classes of which it is seen: a scaler alone is the last one anyway."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Start observing the scaler's class."""
        self._gradients.keep_scale = self.keep_scale
        self._gradients.is_unscaled = self._is_unscaled
        for scaler in self._scalers:
            self._observe(type(scaler))

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Another one may be used."""
        self._scalers.add(scaler)
        self._observe(type(scaler))
        for cls in self._observed - self._seen_scaling:
            self._seen_scaling.add(cls)
            self._undo.append(observe(cls, "scale", _Scaling(self)))

    def _observe(self, cls: type) -> None:
        if cls not in self._observed:
            self._observed.add(cls)
            self._undo.append(observe(cls, "_unscale_grads_", _Unscaling(self)))
            self._undo.append(observe(cls, "update", _Updating(self)))

    def remove(self) -> None:
        """Stop observing."""
        while self._undo:
            self._undo.pop()()

    def scales(self, scaler: object) -> None:
        if scaler in self._scalers:
            assert isinstance(scaler, torch.amp.GradScaler), "nothing else is followed"
            self._last = weakref.ref(scaler)

    def keep_scale(self) -> int:
        """Keep the scale of this step, as of its first use: ``update`` changes the tensor in place.

        The number of its scaler; 0 before a scaler's first use and for a disabled one, which has no scale. During a
        capture it has no value yet.
        """
        scaler = self._last()
        return self._keep_scale_of(scaler) if scaler is not None else 0

    def _keep_scale_of(self, scaler: torch.amp.GradScaler) -> int:
        scale = scaler._scale if scaler.is_enabled() else None
        if scale is None:
            return 0
        number = self._numbers.get(scaler)
        if number is None:
            taken = set(self._numbers.values())
            number = self._numbers[scaler] = next(n for n in count(FIRST_SCALER) if n not in taken)
        buffer = self._recorder.buffer
        if number not in buffer.loss_scales and not self._recorder.capturing():
            with OwnOperations():
                buffer.loss_scales[number] = self._recorder.keep(scale)
        return number

    def _is_unscaled(self, parameter: torch.Tensor) -> bool:
        return any(parameter is other for found in self._found.values() for other in parameters_of(found.optimizer))

    def end_step(self) -> None:
        """Keep the flags of a step whose scaler was not updated."""
        self._keep_found(list(self._found))

    def _keep_found(self, indices: list[int]) -> list[torch.optim.Optimizer]:
        # Copies: ``update`` adds the flags of all optimizers up in the first one's tensor.
        buffer, optimizers = self._recorder.buffer, []
        for index in indices:
            optimizer, scaler, flags = self._found.pop(index)
            buffer.found_inf[index] = [self._recorder.keep(flag) for flag in flags]
            if (number := self._numbers.get(scaler, FIRST_SCALER)) != FIRST_SCALER:
                buffer.scaler_of[index] = number
            optimizers.append(optimizer)
        return optimizers

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401 (a GradScaler)
        if self._gradients.index_of(optimizer) is not None:
            if scaler not in self._scalers:
                # One that nobody has seen being made, such as a copy, or that the user did not tell of.
                self.follow(scaler)
                self._last = weakref.ref(scaler)
            self._gradients.begin(optimizer)
            self._gradients.read_optimizer(optimizer, loss_scaled=self._keep_scale_of(scaler))

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, found: dict[Any, torch.Tensor]) -> None:  # noqa: ANN401
        index = self._gradients.index_of(optimizer)
        if scaler in self._scalers and index is not None:
            # The tensors themselves: a sharded scaler reduces them over the ranks after this.
            self._found[index] = _Unscaled(optimizer, scaler, list(found.values()))

    @property
    def waits(self) -> bool:
        """Whether gradients were unscaled, and the update that deals with skipped optimizers is still to come."""
        return bool(self._found)

    def before_update(self, scaler: object) -> None:
        if scaler in self._scalers:
            dealt_with = self._keep_found([i for i, found in self._found.items() if found.scaler is scaler])
            # One alone has dealt with all that was read, by clipping too.
            self._gradients.scaler_updated(dealt_with if len(self._numbers) > 1 else None)
            self._gradients.settled(*dealt_with)


class _Scaling:
    """Sees ``scale(self, outputs)``."""

    def __init__(self, tap: ScalerTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap.scales(args[0])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


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
