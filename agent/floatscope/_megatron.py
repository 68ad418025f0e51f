"""Reads gradients when one of Megatron's optimizers is about to use them, before it unscales and clips them.

These optimizers are no ``torch.optim.Optimizer``. Megatron's wrapper adds gradients up in ``main_grad``, a part of a
contiguous buffer, and takes ``grad`` away; the torch optimizer inside has copies in float32, or with the distributed
optimizer those of this rank's part alone. What is read here is that part of ``main_grad``, where it is.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from floatscope._gradients import GradientTap
from floatscope._optimizer_view import OptimizerView
from floatscope._patches import Observer, observe
from floatscope._recorder import Recorder
from floatscope._step_buffer import FIRST_SCALER, Clipping

__all__ = ["MegatronTap", "is_megatron_optimizer", "megatron_parameters"]

_MODULE = "megatron.core.optimizer.optimizer"
_READY = ("FP32Optimizer", "MixedPrecisionOptimizer")
"""Classes whose ``prepare_grads`` hands gradients over to the torch optimizer inside."""
_STEPPING = (*_READY, "ChainedOptimizer")
_FSDP_FLAGS = "use_megatron_fsdp", "use_custom_fsdp"
"""Of the configuration; the second is what Megatron Core 0.11 and 0.12 call it, and older ones have none."""
_FSDP = "grad not observed: Megatron's own FSDP"


def _base() -> type | tuple[()]:
    base: type | tuple[()] = getattr(sys.modules.get(_MODULE), "MegatronOptimizer", ())
    return base


def is_megatron_optimizer(candidate: object) -> bool:
    """Whether it is one of Megatron's that wrap a torch optimizer, or several of these."""
    return isinstance(candidate, _base())


def _parts(optimizer: Any) -> list[Any]:  # noqa: ANN401 (Megatron's)
    """Those that ``optimizer`` chains; itself where it chains none."""
    chained = getattr(optimizer, "chained_optimizers", None)
    return [optimizer] if chained is None else [part for one in chained for part in _parts(one)]


def _held(optimizer: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 (one part, Megatron's)
    """Parameters of the model of which this rank updates all, or a part."""
    names = ("model_float16_groups", "model_fp32_groups", "float16_groups", "fp32_from_fp32_groups")
    lists = [getattr(optimizer, name) for name in names if hasattr(optimizer, name)]
    if not lists and not getattr(optimizer, "is_stub_optimizer", False):
        lists = [[group["params"] for group in optimizer.param_groups]]
    return (parameter for groups in lists for group in groups for parameter in group)


def _elsewhere(optimizer: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 (one part, Megatron's)
    """Parameters of the model that the distributed optimizer updates, on whichever rank."""
    return (parameter for buffer in getattr(optimizer, "buffers", ()) for parameter in buffer.params)


def megatron_parameters(optimizer: object) -> Iterator[torch.Tensor]:
    """The model's parameters that such an optimizer updates, on other ranks too."""
    for part in _parts(optimizer):
        yield from _held(part)
        yield from _elsewhere(part)


def _own(optimizer: Any, parameter: Any) -> torch.Tensor | None:  # noqa: ANN401 (one part, Megatron's)
    """The elements of the gradient that are updated on this rank."""
    gradient: torch.Tensor | None = getattr(parameter, "main_grad", None)
    if gradient is None:
        return parameter.grad if isinstance(parameter.grad, torch.Tensor) else None
    if not hasattr(optimizer, "model_float16_groups"):
        return gradient
    part = optimizer._get_model_param_range_map(parameter)["param"]
    return gradient.view(-1)[part.start : part.end]


class MegatronTap:
    """Sees the steps of those of Megatron's optimizers that have parameters of the model. No collective operation."""

    def __init__(self, recorder: Recorder, gradients: GradientTap, given: Iterable[object]) -> None:
        """``given``: optimizers that are known already, so that the first backward pass has a loss scale too."""
        self._recorder = recorder
        self._gradients = gradients
        self._given = [weakref.ref(part) for one in given if is_megatron_optimizer(one) for part in _parts(one)]
        self._views: weakref.WeakKeyDictionary[Any, OptimizerView] = weakref.WeakKeyDictionary()
        """Of each optimizer, which the other taps take for one of torch."""
        self._scalers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Their numbers."""
        self._read: dict[int, int] = {}
        """Of those that are stepping, by their views' numbers: how many gradients each has."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Start observing the classes that are there."""
        for name in _READY:
            self._observe(name, "prepare_grads", _Preparing(self))
        for name in _STEPPING:
            self._observe(name, "step", _Step(self))
        for known in self._given:
            if (optimizer := known()) is not None:
                self._follow(optimizer)

    def _observe(self, name: str, method: str, observer: Observer) -> None:
        cls = getattr(sys.modules.get(_MODULE), name, None)
        # Megatron Core before 0.7 has no such method, nor a place between it and clipping.
        if cls is not None and method in vars(cls):
            self._undo.append(observe(cls, method, observer))

    def remove(self) -> None:
        """Stop observing."""
        while self._undo:
            self._undo.pop()()

    def _follow(self, optimizer: Any) -> Any:  # noqa: ANN401 (one part, Megatron's; a view, which passes for torch's)
        """Its view; None where it has nothing of the model."""
        view: Any = self._views.get(optimizer)
        if view is None:
            layer_of = self._recorder.table.layer_of
            if not any(layer_of(parameter) is not None for parameter in megatron_parameters(optimizer)):
                return None
            view = self._views[optimizer] = OptimizerView()
            self._gradients.follow(view)
            if isinstance(optimizer.optimizer, torch.optim.Optimizer):
                # In float32 it has the model's own parameters, with gradients that are clipped already.
                self._gradients.pass_over(optimizer.optimizer)
            scaler = getattr(optimizer, "grad_scaler", None)
            if scaler is not None:
                self._scalers[scaler] = FIRST_SCALER + len(self._scalers)
                if len(self._scalers) == 1:
                    # By which losses are scaled, that of the first one.
                    first = weakref.ref(scaler)
                    self._gradients.keep_scale = lambda: self._keep_scale(first())
        return view

    def before_step(self, optimizer: Any) -> None:  # noqa: ANN401 (one part, Megatron's)
        """Read its gradients, and what the update will be compared with."""
        view = self._follow(optimizer)
        if view is None:
            return
        held = list(_held(optimizer))
        everywhere = {id(p): p for p in (*held, *_elsewhere(optimizer))}
        view.renew(list(everywhere.values()), [group.get("lr") for group in optimizer.param_groups])
        self._gradients.begin(view)
        scaled = self._keep_scale(getattr(optimizer, "grad_scaler", None))
        parallel = getattr(optimizer, "ddp_config", None)
        # Weights that are gathered during the next forward passes have not changed when the step is over. What rounding
        # takes from a weight its copy in float32 keeps: nothing is swallowed.
        late = getattr(parallel, "overlap_param_gather", False)
        self._gradients.changing(_NOTHING if late else view, False)  # noqa: FBT003 (it takes no name)
        number = self._gradients.index_of(view)
        assert number is not None, "it is followed"
        if scaled > FIRST_SCALER:
            self._recorder.buffer.scaler_of[number] = scaled
        self._read[number] = self._gradients.read_kept(view, self._kept(optimizer, held), loss_scaled=scaled)
        for parameter in _elsewhere(optimizer):
            if (layer := self._recorder.table.layer_of(parameter)) is not None and parallel is not None:
                if any(getattr(parallel, name, False) for name in _FSDP_FLAGS):
                    self._recorder.table.unseen(layer, _FSDP)
                else:
                    self._recorder.table.has_gradient(layer)  # here, or on other ranks
        self._gradients.optimizing()

    def _kept(self, optimizer: Any, held: Iterable[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ANN401
        for parameter in held:
            gradient = _own(optimizer, parameter)
            if gradient is not None and gradient.numel():
                yield parameter, gradient

    def _keep_scale(self, scaler: Any) -> int:  # noqa: ANN401 (Megatron's)
        """Keep the scale of this step, which the update that follows replaces; the number of its scaler, 0 without."""
        number = self._scalers.get(scaler, 0) if scaler is not None else 0
        if number and number not in self._recorder.buffer.loss_scales:
            self._recorder.buffer.loss_scales[number] = self._recorder.keep(scaler.scale)
        return number

    def after_preparing(self, optimizer: Any, found: object) -> None:  # noqa: ANN401 (one part, Megatron's)
        """Megatron has looked for overflows, over all ranks, and waited for the answer."""
        view: Any = self._views.get(optimizer)
        number = self._gradients.index_of(view) if view is not None else None
        if number is not None and getattr(optimizer, "grad_scaler", None) is not None:
            self._recorder.buffer.found_inf[number] = [float(bool(found))]

    def after_step(self, optimizer: Any, result: object) -> None:  # noqa: ANN401 (Megatron's)
        """Compare with what was before; note the norm by which it has clipped, a plain number."""
        views: list[Any] = [view for part in _parts(optimizer) if (view := self._views.get(part)) is not None]
        numbers = [number for view in views if (number := self._gradients.index_of(view)) in self._read]
        if not numbers:
            return
        norm = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        limit = float(optimizer.config.clip_grad)
        if isinstance(norm, float) and limit > 0:
            buffer = self._recorder.buffer
            if buffer.framework_norm is None:
                buffer.framework_norm = self._recorder.scalar("grad_norm/framework", norm)
                buffer.framework_norm_of = count = sum(self._read[number] for number in numbers)
                buffer.clipping = Clipping(buffer.framework_norm, 0, count, limit, limit)
            self._recorder.clipped(min(limit / (norm + 1e-6), 1.0))
        for number in numbers:
            del self._read[number]
        for view in views:
            self._gradients.has_stepped(view)


class _Preparing:
    """Sees ``prepare_grads(self)``, which returns whether there is an overflow."""

    def __init__(self, tap: MegatronTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap.before_step(args[0])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self._tap.after_preparing(args[0], result)


class _Step:
    """Sees ``step(self)``, which returns whether it has updated, the norm of the gradients, and how many are zero."""

    def __init__(self, tap: MegatronTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self._tap.after_step(args[0], result)


_NOTHING: Any = OptimizerView()
"""An optimizer that changes nothing."""
