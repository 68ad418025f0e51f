"""Recorders: floatscope as a user attaches it, and what one would write with torch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import floatscope
from floatscope._bench.training import Training

__all__ = ["OURS", "Recorder"]

_NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: records are made and queued, as while a server is down."""
_NEVER = 1_000_000_000
_SLOTS = 4
_FP16_MIN_NORMAL = 2.0**-14


class Recorder:
    """Nobody: what a training is compared with. The others act in every ``every``-th step, the first included.

    One that cannot be told so acts as its name says.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def attach(self, training: Training) -> None:
        """Begin with the next step."""

    def before_step(self) -> None:
        """A step begins."""

    def after_step(self, loss: torch.Tensor) -> None:
        """What a user's loop does at the end of a step."""

    def detach(self) -> None:
        """Leave the model as it was. ``attach`` may follow."""

    def close(self) -> None:
        """The last word."""


class Ours(Recorder):
    """``floatscope.watch`` with ``options``, its records going to a server that is not there."""

    def __init__(self, every: int, options: dict[str, Any]) -> None:
        super().__init__(every)
        self._options = options

    def attach(self, training: Training) -> None:
        # Those of linear layers, which a user asks for.
        compiled = training.compiled and self._options.get("activations_every") == self.every
        self._scope = floatscope.watch(
            training.model,
            training.optimizer,
            run="bench",
            server=_NOWHERE,
            spool_bytes=0,
            compiled_outputs=compiled,
            **self._options,
        )

    def after_step(self, loss: torch.Tensor) -> None:
        self._scope.step(loss=loss)

    def detach(self) -> None:
        # Closing would try for 5 s to reach the server.
        self._scope._sink.abandon()
        self._scope.close()


def gradients(every: int) -> Recorder:
    """Gradients with histograms."""
    others = dict.fromkeys(("activations_every", "weights_every", "updates_every", "overhead_budget"), 0)
    return Ours(every, {"gradients_every": every, "histograms_every": every, **others})


def outputs(every: int) -> Recorder:
    """Gradients and outputs with histograms."""
    intervals = dict.fromkeys(("gradients_every", "histograms_every", "activations_every"), every)
    return Ours(every, {**intervals, "operands": False, "weights_every": 0, "updates_every": 0, "overhead_budget": 0})


def everything(every: int) -> Recorder:
    """Gradients, outputs and operands with histograms."""
    intervals = dict.fromkeys(("gradients_every", "histograms_every", "activations_every"), every)
    return Ours(every, {**intervals, "weights_every": 0, "updates_every": 0, "overhead_budget": 0})


def default(every: int) -> Recorder:
    """No option at all."""
    return Ours(every, {})


def idle(every: int) -> Recorder:
    """Every hook is there, and no step is one to read in."""
    intervals = ("gradients_every", "histograms_every", "activations_every", "weights_every", "updates_every")
    return Ours(every, {**dict.fromkeys(intervals, _NEVER), "first_step": 1, "overhead_budget": 0})


class _Fetch:
    """Results on their way to pinned host memory; nobody waits for them."""

    def __init__(self) -> None:
        self._slots: list[torch.Tensor] = []
        self._turn = 0

    def send(self, result: torch.Tensor) -> None:
        if not self._slots:
            pinned = result.device.type == "cuda"
            self._slots = [torch.empty_like(result, device="cpu", pin_memory=pinned) for _ in range(_SLOTS)]
        self._slots[self._turn % _SLOTS].copy_(result, non_blocking=True)
        self._turn += 1


class ByHand(Recorder):
    """``summarise`` of all gradients right before the optimizer, and with ``outputs`` of each output in its hook."""

    def __init__(
        self, every: int, summarise: Callable[[list[torch.Tensor]], torch.Tensor], *, outputs: bool = False
    ) -> None:
        super().__init__(every)
        self._summarise, self._outputs = summarise, outputs
        self._handles: list[Any] = []
        self._number = -1

    def attach(self, training: Training) -> None:
        self._number = -1
        self._parameters = list(training.model.parameters())
        self._results: list[torch.Tensor] = []
        self._fetch = _Fetch()
        self._handles = [training.optimizer.register_step_pre_hook(self._before_optimizer)]
        if self._outputs:
            self._handles += [
                module.register_forward_hook(self._after_forward)
                for module in training.model.modules()
                if isinstance(module, nn.Linear | nn.LayerNorm)
            ]

    def before_step(self) -> None:
        self._number += 1

    def detach(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    @torch.no_grad()
    def _after_forward(self, module: nn.Module, args: tuple[object, ...], output: torch.Tensor) -> None:
        if self._number % self.every == 0:
            self._results.append(self._summarise([output]))

    @torch.no_grad()
    def _before_optimizer(self, *_: object) -> None:
        if self._number % self.every == 0:
            self._results.append(self._summarise([p.grad for p in self._parameters if p.grad is not None]))
            self._fetch.send(torch.cat(self._results))
            self._results.clear()


def foreach_norms(every: int) -> Recorder:
    """Two statistics of each gradient, in the fewest launches that torch offers."""
    return ByHand(every, _norms)


def torch_gradients(every: int) -> Recorder:
    """The usual statistics of each gradient, one torch operation after the other, without waiting."""
    return ByHand(every, _statistics)


def torch_all(every: int) -> Recorder:
    """The same, and of each output too."""
    return ByHand(every, _statistics, outputs=True)


def _norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """[tensors, 2]"""
    norms = (torch.stack(torch._foreach_norm(tensors, order)) for order in (float("inf"), 2))
    return torch.stack(tuple(norms), dim=1)


def _statistics(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """[tensors, 8]: absmax, absmin, zeros, NaNs, Infs, those below fp16's normal numbers, sum, sum of squares."""
    return torch.stack([_of_one(tensor.detach().float()) for tensor in tensors])


def _of_one(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    return torch.stack(
        (
            size.amax(),
            torch.where(size > 0, size, float("inf")).amin(),
            (size == 0).sum().float(),
            x.isnan().sum().float(),
            x.isinf().sum().float(),
            (size < _FP16_MIN_NORMAL).sum().float(),
            x.sum(),
            x.square().sum(),
        )
    )


OURS: dict[str, Callable[[int], Recorder]] = {
    "nobody": Recorder,
    "floatscope-gradients": gradients,
    "floatscope-outputs": outputs,
    "floatscope-all": everything,
    "floatscope-default": default,
    "floatscope-idle": idle,
    "foreach-norms": foreach_norms,
    "torch-gradients": torch_gradients,
    "torch-all": torch_all,
}
