"""Observes module outputs, and the inputs and output gradients of linear-like modules, by hooks.

Each tensor is measured inside the hook, so an in-place operation that follows cannot change what is seen, and the
rows of micro-batches are merged on the device. A forward pass that activation checkpointing repeats during backward
is not measured a second time; evaluation passes (the model in eval mode) are not measured at all.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from floatscope._concealment import Unseen, conceal
from floatscope._fp8_modules import NOTHING_ANNOUNCED, Announced, announced
from floatscope._guard import Guard
from floatscope._layers import ROOT_NAME
from floatscope._operands import ExposesExtremes
from floatscope._own_ops import OwnOperations, backward_runs, why_not_now
from floatscope._readable import PLAIN
from floatscope._record import encodable
from floatscope._recorder import Recorder
from floatscope._untraced import run_untraced

__all__ = ["ActivationTap"]

_UNTOUCHED = contextlib.nullcontext()
_hooking = Guard("a module's hook ran", charge="activations")


class ActivationTap:
    """Hooks on the layers of one model. ``keep_scale`` notes the loss scale of the step; whether there is one.

    With ``operands`` inputs and output gradients of linear layers are observed too.
    """

    def __init__(self, recorder: Recorder, model: nn.Module, keep_scale: Callable[[], int], *, operands: bool) -> None:
        self._recorder = recorder
        self._model = weakref.ref(model)
        self._keep_scale = keep_scale
        self._operands = operands
        self.begin_forward: Callable[[], None] | None = None
        """Called before anything of a layer's forward pass is recorded."""
        self.counts_losses = True
        """Whether a loss among the model's outputs is counted when it is not finite."""
        self._forward_waits = False
        """Whether outputs may wait to be measured, which hold memory that backward passes need."""
        self._exposing: list[str] = []
        """Names of the modules that tell extremes."""
        self._coming: dict[int, Announced] = {}
        self._have_run: set[int] = set()
        """Layers whose place in execution order is known."""
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Add the hooks."""
        self._undo.append(conceal())
        run_untraced(_Hook.__call__.__code__)
        for layer, module in self._recorder.table.observable():
            if layer in self._recorder.table.casting:
                self._undo.append(module.register_forward_pre_hook(_Hook(self, self._before_forward, layer)).remove)
            self._undo.append(module.register_forward_hook(_OutputHook(self, self._after_forward, layer)).remove)
        model = self._model()
        assert model is not None, "the caller holds it"
        modules = {name: module for name, module in model.named_modules() if isinstance(module, ExposesExtremes)}
        for number, name in enumerate(modules):
            self._exposing.append(encodable(name) or ROOT_NAME)
            hook = _Hook(self, self._after_exposing, number)
            self._undo.append(model.get_submodule(name).register_forward_hook(hook).remove)
        if not isinstance(model, torch.jit.ScriptModule):
            self._undo.append(model.register_forward_hook(_Hook(self, self._after_model, 0)).remove)

    def remove(self) -> None:
        """Remove the hooks."""
        while self._undo:
            self._undo.pop()()

    def unseen(self, layer: int, observe: Callable[..., None], reason: str) -> None:
        """A forward pass that ``observe`` was to see could not be measured."""
        if observe == self._after_forward and self._training():
            self._recorder.table.unseen(layer, f"outputs not observed {reason}")

    def rests(self, layer: int) -> bool:
        """Whether nothing of a call of the layer is wanted, which is so in most steps: asked before anything else."""
        recorder = self._recorder
        buffer = recorder.buffer
        if buffer.activations and not buffer.wanted.layers:
            return False
        if self.begin_forward is not None or layer not in self._have_run:
            return False
        if buffer.activations:
            return self._left_out(layer)
        return not (recorder.captures_outputs and recorder.capturing())

    def _left_out(self, layer: int) -> bool:
        """Whether outputs are read because somebody looks closer, at other layers."""
        recorder = self._recorder
        names = recorder.buffer.wanted.layers
        return bool(names) and not recorder.capturing() and layer not in recorder.table.inside(names)

    def _before_forward(self, layer: int, module: Any, args: tuple[Any, ...]) -> None:  # noqa: ANN401
        recorder = self._recorder
        if not self._training() or backward_runs():
            return
        if self.begin_forward is not None:
            self.begin_forward()
        buffer = recorder.buffer
        if not (buffer.weights or recorder.wants_outputs):
            return
        with OwnOperations():
            casts = self._coming[layer] = self._announced(layer, module)
            weighs = buffer.weights and not recorder.capturing()
            if weighs and "weight" in casts.operands and layer not in buffer.cast_weights:
                buffer.cast_weights.add(layer)
                recorder.record("weight", layer, module.weight, cast=casts.operands["weight"], parameter=module.weight)
            if buffer.weights and "weight" in casts.blocks:
                recorder.record_blocks("weight", layer, module.weight, casts.blocks["weight"])

    def _announced(self, layer: int, module: nn.Module) -> Announced:
        """The casts to come; none when an operand cannot be made of what the module knows."""
        try:
            casts = announced(module)
        except ValueError as error:
            self._recorder.table.refuse_scale(layer, "casts", str(error))
            return NOTHING_ANNOUNCED
        if casts.unseen:
            self._recorder.table.unseen(layer, casts.unseen)
        return casts

    def _after_forward(self, layer: int, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        recorder, model = self._recorder, self._model()
        if model is None or not model.training:
            if torch.is_grad_enabled():
                recorder.table.evaluated(layer)
            return
        recomputing = backward_runs()
        if not recomputing:
            if self.begin_forward is not None:
                self.begin_forward()
            if layer not in self._have_run:
                recorder.table.executed(layer)
                self._have_run.add(layer)
        buffer = recorder.buffer
        if not (buffer.activations or recorder.wants_outputs) or (buffer.wanted.layers and self._left_out(layer)):
            return
        self._forward_waits = True
        out = output if type(output) is torch.Tensor else _first_tensor(output)
        operands = self._operands and layer in recorder.table.linear
        casts = self._coming.pop(layer, NOTHING_ANNOUNCED)
        if not recomputing:
            given = _first_tensor(args) if operands else None
            now = recorder.capturing()
            if out is not None and (now or not recorder.defer("act", layer, out)):
                with OwnOperations():
                    recorder.record("act", layer, out)
            cast = casts.operands.get("act_in")
            if given is not None and (now or cast is not None or not recorder.defer("act_in", layer, given)):
                with OwnOperations():
                    recorder.record("act_in", layer, given, cast=cast, later=True)
            if given is not None and "act_in" in casts.blocks:
                with OwnOperations():
                    recorder.record_blocks("act_in", layer, given, casts.blocks["act_in"])
        # A reentrant checkpoint runs its first pass without gradients: then the outputs to hook are the second's.
        if operands and out is not None:
            # What a subclass overrides is told of the user's operations only.
            with _UNTOUCHED if type(out) in PLAIN else OwnOperations():
                if out.requires_grad:
                    _add_hook(_whole_base(out), _GradientHook(self, layer, module))

    def _after_exposing(self, number: int, module: Any, args: tuple[Any, ...], output: object) -> None:  # noqa: ANN401
        if not self._training() or backward_runs() or not self._recorder.buffer.activations:
            return
        with OwnOperations():
            for name, value in module.floatscope_extremes().items():
                self._recorder.raise_to(f"{encodable(name)}_max/{self._exposing[number]}", value)

    def end_forward(self) -> None:
        """Measure the outputs that wait for it."""
        self._forward_waits = False
        with OwnOperations():
            self._recorder.flush()

    def _training(self) -> bool:
        # A layer can outlive its model as a part of another one.
        model = self._model()
        return model is not None and model.training

    def after_backward_of_output(self, layer: int, module: Any, gradient: torch.Tensor) -> None:  # noqa: ANN401
        """The gradient of a layer's output is complete, and about to be cast by its backward pass."""
        recorder = self._recorder
        if self._forward_waits:
            self.end_forward()
        casts = NOTHING_ANNOUNCED
        if layer in recorder.table.casting:
            with OwnOperations():
                casts = self._announced(layer, module)
        cast = casts.operands.get("act_grad")
        loss_scaled = self._keep_scale()
        if "act_grad" in casts.blocks:
            with OwnOperations():
                recorder.record_blocks("act_grad", layer, gradient, casts.blocks["act_grad"])
        waits = cast is None and not recorder.capturing()
        if waits and recorder.defer("act_grad", layer, gradient, loss_scaled=loss_scaled):
            return
        with OwnOperations():
            recorder.record("act_grad", layer, gradient, cast=cast, loss_scaled=loss_scaled, later=True)

    def _after_model(self, layer: int, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """Count a micro-batch whose own loss is not finite, which averaging and clipping may hide later."""
        self._recorder.ranks.in_forward()
        if self._forward_waits and not backward_runs():
            self.end_forward()
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not self.counts_losses or not module.training or not isinstance(loss, torch.Tensor) or backward_runs():
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

    __slots__ = ("_layer", "_observe", "_tap")

    def __init__(self, tap: ActivationTap, observe: Callable[..., None], layer: int) -> None:
        self._tap = tap
        self._observe = observe
        self._layer = layer

    def __call__(self, module: nn.Module, *args: object) -> None:
        if torch.compiler.is_compiling():
            return
        self._see(module, args)

    def _see(self, module: nn.Module, args: tuple[object, ...]) -> None:
        with _hooking:
            if (reason := why_not_now()) is None:
                self._observe(self._layer, module, *args)
            elif not torch.compiler.is_compiling():
                self._tap.unseen(self._layer, self._observe, reason)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _OutputHook(_Hook):
    """One that has nothing to do in a step whose outputs are not read, once its layer is known to run."""

    __slots__ = ()

    def __call__(self, module: nn.Module, *args: object) -> None:
        # ``is_compiling`` is two calls, and this one. Where it alone is true, in an export that dynamo does not trace,
        # tensors have no values, and ``_see`` asks it then.
        if not (torch.compiler.is_dynamo_compiling() or self._tap.rests(self._layer)):
            self._see(module, args)


class _GradientHook:
    """A tensor hook on the output of a layer; returns None, so the gradient passes unchanged."""

    __slots__ = ("_layer", "_module", "_tap")

    def __init__(self, tap: ActivationTap, layer: int, module: nn.Module) -> None:
        self._tap, self._layer, self._module = tap, layer, module

    def __call__(self, gradient: torch.Tensor) -> None:
        if torch.compiler.is_dynamo_compiling() or why_not_now() is not None:
            return
        with _hooking:
            if torch.is_grad_enabled() and not _accumulating(self._module):
                return
            self._tap.after_backward_of_output(self._layer, self._module, gradient)


def _add_hook(tensor: torch.Tensor, hook: _GradientHook) -> None:
    """``tensor.register_hook(hook)`` without a handle to take it off again, which is most of what that costs.

    0.8 us instead of 2.9 where caches are warm.
    """
    node = tensor.grad_fn
    if node is None or type(tensor) is not torch.Tensor or tensor._backward_hooks is not None:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        return
    hooks: OrderedDict[int, Any] = OrderedDict()
    tensor._backward_hooks = hooks
    node._register_hook_dict(tensor)
    # Handles count from 0.
    hooks[-1] = hook


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


def _first_tensor(value: object) -> torch.Tensor | None:
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
