"""Reads gradients when one of DeepSpeed's optimizers is about to use them, before it looks for overflows and clips.

These optimizers are no ``torch.optim.Optimizer`` and call no hook with a parameter of the model: the torch optimizer
inside has flat copies. ZeRO takes ``grad`` away while the backward pass runs and keeps its share of the reduced
gradient, which is read where it is: ``deepspeed.utils.safe_get_full_grad`` would be a collective operation, and
``safe_get_local_grad`` is for ZeRO-3 alone, waits for a stream and gives a copy in float32.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from floatscope._gradients import GradientTap
from floatscope._optimizer_view import OptimizerView
from floatscope._patches import Observer, observe
from floatscope._recorder import Recorder
from floatscope._step_buffer import FIRST_SCALER, Clipping
from floatscope._zero import own_fragment, real_part

__all__ = ["DeepSpeedTap", "is_deepspeed_optimizer", "model_parameters"]

_OPTIMIZERS = {
    "deepspeed.runtime.zero.stage_1_and_2": ("DeepSpeedZeroOptimizer", "bit16_groups"),
    "deepspeed.runtime.zero.stage3": ("DeepSpeedZeroOptimizer_Stage3", "fp16_groups"),
    "deepspeed.runtime.bf16_optimizer": ("BF16_Optimizer", "bf16_groups"),
    "deepspeed.runtime.fp16.fused_optimizer": ("FP16_Optimizer", "fp16_groups"),
    "deepspeed.runtime.fp16.unfused_optimizer": ("FP16_UnfusedOptimizer", "fp16_groups"),
}
"""By module, the class and its attribute with the lists of the model's parameters."""
_ENGINE = "deepspeed.runtime.engine", "DeepSpeedEngine"
_OFFLOADED = "grad not observed: DeepSpeed moves it to the host, which ends after its optimizer's step has begun"


def _groups(optimizer: Any) -> list[list[torch.Tensor]]:  # noqa: ANN401 (DeepSpeed's)
    for cls in type(optimizer).__mro__:
        name, attribute = _OPTIMIZERS.get(cls.__module__, ("", ""))
        if name == cls.__name__:
            groups: list[list[torch.Tensor]] = getattr(optimizer, attribute)
            return groups
    return []


def is_deepspeed_optimizer(candidate: object) -> bool:
    """Whether it is one of DeepSpeed's that wrap a torch optimizer."""
    return any(_OPTIMIZERS.get(cls.__module__, ("",))[0] == cls.__name__ for cls in type(candidate).__mro__)


def model_parameters(optimizer: object) -> Iterator[torch.Tensor]:
    """The model's parameters that such an optimizer updates."""
    return (parameter for group in _groups(optimizer) for parameter in group)


def _listed(optimizer: Any) -> dict[int, torch.Tensor]:  # noqa: ANN401 (DeepSpeed's)
    """By the identity of a parameter what ZeRO has of its reduced gradient on this rank, once a backward pass ended.

    Not by the places that stages 1 and 2 note at parameters: with ``round_robin_gradients`` they are others.
    """
    lists = getattr(optimizer, "averaged_gradients", None) or {}
    # Stages 1 and 2 list the gradients of those parameters that are updated here, and what fills the partition up.
    here = getattr(optimizer, "params_in_partition", None)
    found: dict[int, torch.Tensor] = {}
    for at, group in enumerate(_groups(optimizer) if here is None else here):
        gradients = [g for g in lists.get(at) or () if not hasattr(g, "_zero_padding")]
        if here is not None:
            group = [p for p in group if p.numel()]
            gradients = [g for g in gradients if g.numel()]
        found.update((id(p), gradient) for p, gradient in zip(group, gradients, strict=False))
    return found


class DeepSpeedTap:
    """Sees the steps of those of DeepSpeed's optimizers, and the clipping of those engines, that have parameters of
    the model."""

    def __init__(self, recorder: Recorder, gradients: GradientTap) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._views: weakref.WeakKeyDictionary[Any, OptimizerView] = weakref.WeakKeyDictionary()
        """Of each optimizer, which the other taps take for one of torch."""
        self._read = 0
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Start observing the classes that are there."""
        for module, (name, _) in _OPTIMIZERS.items():
            self._observe(module, name, "step", _Step(self))
        self._observe(*_ENGINE, "clip_fp32_gradients", _Clip(self))

    def _observe(self, module: str, name: str, method: str, observer: Observer) -> None:
        # Another version may have other ones, or be half imported; and what is trained need not be DeepSpeed's.
        cls = getattr(sys.modules.get(module), name, None)
        if hasattr(cls, method):
            self._undo.append(observe(cls, method, observer))

    def remove(self) -> None:
        """Stop observing."""
        while self._undo:
            self._undo.pop()()

    def before_step(self, optimizer: Any) -> None:  # noqa: ANN401 (DeepSpeed's)
        """Read its gradients, and what the update will be compared with."""
        layer_of = self._recorder.table.layer_of
        if not any(layer_of(parameter) is not None for parameter in model_parameters(optimizer)):
            return
        if optimizer not in self._views:
            self._views[optimizer] = OptimizerView()
            self._gradients.follow(self._views[optimizer])
        view: Any = self._views[optimizer]
        parameters = list(model_parameters(optimizer))
        view.renew(parameters, [group.get("lr") for group in optimizer.param_groups])
        self._gradients.begin(view)
        scaled = self._keep_scale(optimizer)
        # What rounding takes from a weight in bf16 its copy in float32 keeps: nothing is swallowed.
        self._gradients.changing(view, False)  # noqa: FBT003 (it takes no name)
        self._read = self._gradients.read_kept(view, self._kept(optimizer, parameters), loss_scaled=scaled)
        self._gradients.optimizing()

    def _keep_scale(self, optimizer: Any) -> int:  # noqa: ANN401 (DeepSpeed's)
        """Keep the loss scale, a number of the host or with DeepSpeed's autocast a torch scaler's; whether there is
        one."""
        scaler = getattr(optimizer, "torch_autocast_gradscaler", None)
        scale = getattr(optimizer, "loss_scale", 1.0) if scaler is None else scaler._scale
        if scale is None or (scaler is None and scale == 1.0 and not getattr(optimizer, "dynamic_loss_scale", False)):
            return 0
        if FIRST_SCALER not in self._recorder.buffer.loss_scales:
            self._recorder.buffer.loss_scales[FIRST_SCALER] = self._recorder.scalar("loss_scale", scale)
        return FIRST_SCALER

    def _kept(self, optimizer: Any, parameters: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ANN401
        in_lists = _listed(optimizer)
        offloads = any(getattr(optimizer, name, False) for name in ("cpu_offload", "offload_optimizer"))
        for parameter in parameters:
            layer = self._recorder.table.layer_of(parameter)
            if layer is None:
                continue
            if offloads and (hasattr(parameter, "ds_tensor") or parameter.device.type != "cpu"):
                self._recorder.table.unseen(layer, _OFFLOADED)
                continue
            listed = in_lists.get(id(parameter))
            gradient = real_part(parameter, listed) if listed is not None else None
            if not in_lists:
                gradient = own_fragment(parameter)
            if gradient is not None and gradient.numel():
                yield parameter, gradient
            elif in_lists or getattr(parameter, "_hp_mapping", 0) is None:
                self._recorder.table.has_gradient(layer)  # which other ranks have

    def after_step(self, optimizer: Any) -> None:  # noqa: ANN401 (DeepSpeed's)
        """Compare with what was before; note what the optimizer found."""
        view: Any = self._views.get(optimizer)
        if view is None:
            return
        self._gradients.has_stepped(view)
        number, buffer = self._gradients.index_of(view), self._recorder.buffer
        assert number is not None, "it is followed since before the step"
        skipped = bool(optimizer.overflow)
        if buffer.loss_scales or skipped:
            buffer.found_inf[number] = [float(skipped)]
        norm = getattr(optimizer, "_global_grad_norm", None)
        if norm is None or (skipped and not isinstance(norm, torch.Tensor)):
            return  # not computed: infinite by decree where a step was skipped
        limit = float(optimizer.clip_grad)
        if buffer.framework_norm is None:
            buffer.framework_norm = kept = self._recorder.scalar("grad_norm/framework", norm)
            buffer.framework_norm_of = self._read
            if limit > 0:
                buffer.clipping = Clipping(kept, 0, self._read, limit, limit)
        if limit > 0:
            ratio = limit / (norm + 1e-6)
            self._recorder.clipped(ratio.clamp(max=1.0) if isinstance(ratio, torch.Tensor) else min(ratio, 1.0))

    def before_clipping(self, engine: Any) -> None:  # noqa: ANN401 (DeepSpeed's)
        """Without ZeRO in float32 the engine clips by itself, what torch's own optimizer then uses."""
        parameters: Sequence[torch.Tensor] = list(engine.module.parameters())
        if any(self._recorder.table.layer_of(p) is not None for p in parameters):
            if self._gradients.was_stepped(parameters):
                return  # of the step that the optimizer is going to begin
            self._gradients.begin_update()
            self._gradients.read(parameters, loss_scaled=0)


class _Step:
    """Sees ``step(self, closure=None)``."""

    def __init__(self, tap: DeepSpeedTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap.before_step(args[0])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self._tap.after_step(args[0])


class _Clip:
    """Sees ``clip_fp32_gradients(self)``."""

    def __init__(self, tap: DeepSpeedTap) -> None:
        self._tap = tap

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tap.before_clipping(args[0])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass
