"""Ends the steps of a training whose loop does not say when one is over, and takes losses from its backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from floatscope._activations import ActivationTap
from floatscope._gradients import GradientTap
from floatscope._own_ops import backward_runs, capturing
from floatscope._patches import observe
from floatscope._recorder import Recorder

__all__ = ["Driver"]


class Driver:
    """Drives one scope: ``end`` ends a step of it.

    A step is over when each optimizer that takes part has updated, or a scaler has skipped that. Who takes part is
    learned: an optimizer that has not updated by the time another one does for a second time is not waited for again.
    """

    def __init__(
        self, recorder: Recorder, gradients: GradientTap, activations: ActivationTap, end: Callable[[], None]
    ) -> None:
        self._gradients = gradients
        self._activations = activations
        self._end = end
        self._scaler_waits: Callable[[], bool] = bool
        self._expected: set[int] = set()
        self._done: set[int] = set()
        self._losses = Losses(recorder)
        self._undo: list[Callable[[], None]] = []

    def install(self, optimizers: Sequence[torch.optim.Optimizer], scaler_waits: Callable[[], bool]) -> None:
        """Begin to drive; ``optimizers`` are expected to update in each step.

        ``scaler_waits``: whether a scaler has unscaled gradients, and its update is still to come.
        """
        self._scaler_waits = scaler_waits
        numbers = [self._gradients.index_of(optimizer) for optimizer in optimizers]
        self._expected.update(number for number in numbers if number is not None)
        self._undo.append(observe(torch.autograd, "backward", _Backward(self._losses)))
        self._undo.append(observe(torch.amp.GradScaler, "scale", _Scaling(self._losses)))
        tap = self._gradients
        before = tap.using, tap.settled

        def restore() -> None:
            tap.using, tap.settled = before
            self._activations.counts_losses = True

        tap.using, tap.settled = self._using, self._settled
        # The loss that a model returns is the one that the backward pass begins at.
        self._activations.counts_losses = False
        self._undo.append(restore)

    def remove(self) -> None:
        """Leave the steps to somebody else."""
        while self._undo:
            self._undo.pop()()

    def _using(self, optimizer: Any) -> None:  # noqa: ANN401 (of torch's kind, or with ``param_groups`` alone)
        number = self._gradients.index_of(optimizer)
        if number is not None:
            self._losses.used_by(number)

    def _settled(self, *optimizers: Any) -> None:  # noqa: ANN401
        for optimizer in optimizers:
            number = self._gradients.index_of(optimizer)
            if number is not None:
                # Those of a closure have come since it began.
                self._losses.used_by(number)
                self._done.add(number)
        if self._done and not self._scaler_waits() and self._expected <= self._done:
            self._finish()

    def overdue(self) -> None:
        """An optimizer begins its second update in a step: that step is over."""
        self._expected = set(self._done)
        self._finish()

    def _finish(self) -> None:
        self._done.clear()
        self._end()


class Losses:
    """The tensors that backward passes begin at: of a step the mean of all, and how many were not finite.

    Losses of backward passes since another optimizer has updated are that of the next: "loss", "loss/1", ... as
    learning rates are numbered. On their device, and fetched with the step.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sum: torch.Tensor | None = None
        self._largest: torch.Tensor | None = None
        self._count = 0
        self._raw: torch.Tensor | None = None

    def scaled(self, raw: object) -> None:
        """A scaler has scaled ``raw``: what the next backward pass begins at is made of it."""
        if isinstance(raw, torch.Tensor) and raw.numel() == 1:
            self._raw = raw.detach()

    def seen(self, tensors: object) -> None:
        """A backward pass begins at ``tensors``."""
        raw, self._raw = self._raw, None
        loss = raw
        if loss is None and isinstance(tensors, torch.Tensor):
            loss = tensors.detach()
        # Pipelines hand on gradients of whole tensors: no losses.
        if loss is None or loss.numel() != 1 or loss.device.type == "meta" or capturing():
            return
        self._recorder.count_nonfinite(loss)
        value = loss.reshape(()).to(torch.float64 if loss.device.type == "cpu" else torch.float32)
        if self._sum is None or self._largest is None or self._sum.device != value.device:
            self._sum, self._largest, self._count = value.clone(), value, 1
            return
        self._sum += value
        self._largest = torch.maximum(self._largest, value)
        self._count += 1

    def used_by(self, number: int) -> None:
        """The optimizer ``number`` has updated by the losses so far."""
        total, largest, count = self._sum, self._largest, self._count
        self._sum = self._largest = None
        if total is None or largest is None:
            return
        own, suffix = self._recorder.buffer.own, f"/{number}" if number else ""
        own[f"loss{suffix}"] = self._recorder.keep(total / count)
        if count > 1:
            own[f"micro_batches{suffix}"] = float(count)
            own[f"raw_loss_max{suffix}"] = self._recorder.keep(largest)


class _Backward:
    """Sees ``torch.autograd.backward(tensors, ...)``, which ``Tensor.backward`` calls."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not backward_runs():  # a checkpoint's own
            self._losses.seen(args[0] if args else kwargs.get("tensors"))

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


class _Scaling:
    """Sees ``GradScaler.scale(self, outputs)``."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._losses.scaled(args[1] if len(args) > 1 else kwargs.get("outputs"))

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass
