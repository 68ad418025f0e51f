"""Observes module outputs, and the inputs and output gradients of linear-like modules, by hooks.

Each tensor is measured inside the hook, so an in-place operation that follows cannot change what is seen, and the
rows of micro-batches are merged on the device. A forward pass that activation checkpointing repeats during backward
is not measured a second time; evaluation passes (the model in eval mode) are not measured at all.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from floatscope._concealment import Unseen, conceal
from floatscope._guard import Guard
from floatscope._operands import CastsOperands, Operand
from floatscope._own_ops import OwnOperations, why_not_now
from floatscope._recorder import Recorder

__all__ = ["ActivationTap"]

_hooking = Guard("a module's hook ran")


class ActivationTap:
    """Hooks on the layers of one model. ``keep_scale`` notes the loss scale of the step; whether there is one."""

    def __init__(self, recorder: Recorder, model: nn.Module, keep_scale: Callable[[], bool]) -> None:
        self._recorder = recorder
        self._model = weakref.ref(model)
        self._keep_scale = keep_scale
        self.begin_forward: Callable[[], None] | None = None
        """Called before anything of a layer's forward pass is recorded."""
        self._coming: dict[int, Mapping[str, Operand]] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Add the hooks."""
        self._undo.append(conceal())
        for layer, module in self._recorder.table.observable():
            if layer in self._recorder.table.casting:
                self._undo.append(module.register_forward_pre_hook(_Hook(self, self._before_forward, layer)).remove)
            self._undo.append(module.register_forward_hook(_Hook(self, self._after_forward, layer)).remove)
        model = self._model()
        assert model is not None, "the caller holds it"
        if not isinstance(model, torch.jit.ScriptModule):
            self._undo.append(model.register_forward_hook(_Hook(self, self._after_model, 0)).remove)

    def remove(self) -> None:
        """Remove the hooks."""
        while self._undo:
            self._undo.pop()()

    def unseen(self, layer: int, reason: str) -> None:
        """A forward pass of the layer could not be measured."""
        if self._training():
            self._recorder.table.unseen(layer, f"outputs not observed {reason}")

    def _before_forward(self, layer: int, module: Any, args: tuple[Any, ...]) -> None:  # noqa: ANN401
        recorder = self._recorder
        if not self._training() or _recomputing():
            return
        if self.begin_forward is not None:
            self.begin_forward()
        buffer = recorder.buffer
        if not (buffer.weights or recorder.wants_outputs):
            return
        with OwnOperations():
            casts = self._coming[layer] = self._announced(layer, module)
            if buffer.weights and not recorder.capturing() and "weight" in casts and layer not in buffer.cast_weights:
                buffer.cast_weights.add(layer)
                recorder.record("weight", layer, module.weight, cast=casts["weight"])

    def _announced(self, layer: int, module: CastsOperands) -> Mapping[str, Operand]:
        """The casts to come; none when an operand cannot be made of what the module knows."""
        try:
            return module.floatscope_operands()
        except ValueError as error:
            self._recorder.table.refuse_scale(layer, "casts", str(error))
            return {}

    def _after_forward(self, layer: int, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        recorder = self._recorder
        if not self._training():
            if torch.is_grad_enabled():
                recorder.table.evaluated(layer)
            return
        recomputing = _recomputing()
        if not recomputing:
            if self.begin_forward is not None:
                self.begin_forward()
            recorder.table.executed(layer)
        if not recorder.wants_outputs:
            return
        out = _first_tensor(output)
        linear = layer in recorder.table.linear
        casts = self._coming.pop(layer, {})
        if not recomputing:
            given = _first_tensor(args)
            with OwnOperations():
                if out is not None:
                    recorder.record("act", layer, out, later=True)
                if linear and given is not None:
                    recorder.record("act_in", layer, given, cast=casts.get("act_in"), later=True)
        # A reentrant checkpoint runs its first pass without gradients: then the outputs to hook are the second's.
        if linear and out is not None and out.requires_grad:
            _whole_base(out).register_hook(_GradientHook(self, layer, module))  # type: ignore[no-untyped-call]

    def _training(self) -> bool:
        # A layer can outlive its model as a part of another one.
        model = self._model()
        return model is not None and model.training

    def after_backward_of_output(self, layer: int, module: Any, gradient: torch.Tensor) -> None:  # noqa: ANN401
        """The gradient of a layer's output is complete, and about to be cast by its backward pass."""
        cast = self._announced(layer, module).get("act_grad") if layer in self._recorder.table.casting else None
        loss_scaled = self._keep_scale()
        self._recorder.record("act_grad", layer, gradient, cast=cast, loss_scaled=loss_scaled, later=True)

    def _after_model(self, layer: int, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """Count a micro-batch whose own loss is not finite, which averaging and clipping may hide later."""
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not module.training or not isinstance(loss, torch.Tensor) or _recomputing():
            return
        if self._recorder.capturing():
            return
        with OwnOperations():
            self._recorder.count_nonfinite(loss)


class _Hook(Unseen):
    """A module hook that never changes the call.

    A model that pickles or copies itself in a way of its own may take it along: then it becomes one that does nothing
    and needs nothing but the standard library to load.
    """

    def __init__(self, tap: ActivationTap, observe: Callable[..., None], layer: int) -> None:
        self._tap = tap
        self._observe = observe
        self._layer = layer

    def __call__(self, module: nn.Module, *args: object) -> None:
        if torch.compiler.is_compiling():
            return
        with _hooking:
            if (reason := why_not_now()) is not None:
                self._tap.unseen(self._layer, reason)
                return
            self._observe(self._layer, module, *args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _GradientHook:
    """A tensor hook on the output of a layer; returns None, so the gradient passes unchanged."""

    def __init__(self, tap: ActivationTap, layer: int, module: nn.Module) -> None:
        self._tap, self._layer, self._module = tap, layer, module

    def __call__(self, gradient: torch.Tensor) -> None:
        if torch.compiler.is_compiling() or why_not_now() is not None:
            return
        with _hooking:
            if torch.is_grad_enabled() and not _accumulating(self._module):
                return
            with OwnOperations():
                self._tap.after_backward_of_output(self._layer, self._module, gradient)


def _accumulating(module: nn.Module) -> bool:
    """Whether this backward pass, which will be differentiated itself, computes the gradient of the layer's weight.

    A gradient penalty asks for the gradient of the inputs first: what it does with the layers is not the training's.
    """
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or not weight.requires_grad:
        return True
    with OwnOperations():
        node = torch.autograd.graph.get_gradient_edge(weight).node
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # So it answers for a leaf that ``autograd.grad`` was asked for by name.
        return True


def _whole_base(output: torch.Tensor) -> torch.Tensor:
    """The tensor whose gradient has the same elements and is computed whatever happens to ``output`` in place.

    A linear layer's output is a view when its input has more than two dimensions. An in-place operation takes a view
    out of the graph, with the hooks on it, and leaves its base in.
    """
    base = output._base if output._is_view() else None
    return base if base is not None and base.numel() == output.numel() and base.requires_grad else output


def _recomputing() -> bool:
    """Whether autograd is running: a forward pass inside a backward pass repeats one that was seen."""
    return bool(torch._C._current_graph_task_id() != -1)


def _first_tensor(value: object) -> torch.Tensor | None:
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
