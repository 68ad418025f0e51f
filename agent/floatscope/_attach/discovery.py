"""Waits for a training to begin: an optimizer is made, then a model runs that it updates."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from floatscope._guard import Guard
from floatscope._log import logger
from floatscope._own_ops import backward_runs, transformed
from floatscope._patches import observe
from floatscope._step_hooks import after_steps, before_steps

if TYPE_CHECKING:
    from floatscope._scope import Scope

__all__ = ["Discovery"]

_finding = Guard("looking for the model that is trained")


class Discovery:
    """Attaches when the first module runs that a new optimizer updates: distribution and autocast are set up then.

    Or sooner, before what comes first: a compilation, a backward pass, the optimizer's step. Compiled code must find
    hooks in place, or none; so the global forward hook is there only between an optimizer's making and that moment.
    """

    def __init__(self, watch: Callable[..., Scope] | None = None) -> None:
        """``watch`` in place of ``floatscope.watch``."""
        self._watch = watch
        self._pending: list[weakref.ref[Optimizer]] = []
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._scalers: list[weakref.ref[torch.amp.GradScaler]] = []
        self._scopes: list[Scope] = []
        self._forward: Callable[[], None] | None = None
        self._first_steps: list[tuple[int, RemovableHandle]] = []
        """Hooks on optimizers that wait for their first step, or had it; with the thread that has made each, since
        another one may be in its step."""
        self._compiled_module = False
        self._told_of_compilations = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to wait."""
        self._undo += [
            observe(Optimizer, "__init__", _After(self._optimizer_made)),
            observe(torch.amp.GradScaler, "__init__", _After(self._scaler_made)),
            # Before the model is found: ``scaler.scale(loss_of(batch))`` looks ``scale`` up before the forward pass.
            observe(torch.amp.GradScaler, "scale", _Before(self._scaler_scales)),
            observe(torch, "compile", _After(self._compile_called, self._module_compiled)),
            observe(torch.autograd, "backward", _Before(self._backward_begins)),
            before_steps(self._any_step),
            # For scopes that are made while other threads train.
            after_steps(_nothing),
        ]

    def remove(self) -> None:
        """Wait no longer. Scopes that are attached stay."""
        self._pending.clear()
        self._stop_watching_forward()
        while self._first_steps:
            self._first_steps.pop()[1].remove()
        while self._undo:
            self._undo.pop()()

    @property
    def scopes(self) -> list[Scope]:
        """Those that were made here, and whose model is still there."""
        self._scopes = [scope for scope in self._scopes if not scope.closed]
        return list(self._scopes)

    def optimizer_taken(self, optimizer: Optimizer) -> None:
        """Somebody who knows more attaches by code to what ``optimizer`` updates."""
        self._known.add(optimizer)
        self._pending = [known for known in self._pending if known() is not optimizer]
        if not self._pending:
            self._stop_watching_forward()

    def optimizer_left(self, optimizer: Optimizer) -> None:
        """Whoever has taken ``optimizer`` leaves it to the loop after all."""
        self._known.discard(optimizer)
        self._optimizer_made(optimizer)

    def _optimizer_made(self, optimizer: Any) -> None:  # noqa: ANN401
        # A class that calls the base's __init__ from others' is told of once.
        if optimizer in self._known or not getattr(optimizer, "param_groups", None):
            return
        self._known.add(optimizer)
        self._pending.append(weakref.ref(optimizer))
        self._first_steps.append((threading.get_ident(), optimizer.register_step_pre_hook(self._first_step)))
        if self._forward is None and not self._compiled_module:
            self._forward = register_module_forward_pre_hook(self._module_runs).remove

    def _scaler_made(self, scaler: Any) -> None:  # noqa: ANN401
        if not scaler.is_enabled():
            return
        self._scalers.append(weakref.ref(scaler))
        for scope in self.scopes:
            scope.use_scaler(scaler)

    def _scaler_scales(self, scaler: Any) -> None:  # noqa: ANN401
        if self._pending:
            others = [known for known in self._scalers if known() is not scaler]
            if len(others) < len(self._scalers):
                self._scalers = [*others, weakref.ref(scaler)]

    def _compile_called(self, *_: object) -> None:
        if not self._told_of_compilations and (callback := sys.modules.get("torch._dynamo.callback")) is not None:
            self._told_of_compilations = True
            begins = torch._dynamo.disable(self._compilation_begins)  # type: ignore[no-untyped-call]
            told = callback.callback_handler.start_callbacks
            callback.callback_handler.register_start_callback(begins)
            self._undo.append(lambda: told.remove(begins) if begins in told else None)

    def _module_compiled(self, compiled: object) -> None:
        if isinstance(compiled, nn.Module):
            # It warns of global hooks when it runs.
            self._compiled_module = True
            self._stop_watching_forward()

    def _compilation_begins(self, *_: object) -> None:
        with _finding:
            self._attach(None)

    def _module_runs(self, module: nn.Module, args: object) -> None:
        if torch.compiler.is_compiling() or transformed():
            return
        with _finding:
            if not self._waiting():
                self._stop_watching_forward()  # those that it waited for are gone
                return
            updated = {id(p) for optimizer in self._waiting() for g in optimizer.param_groups for p in g["params"]}
            own = list(module.parameters())
            # Lazy ones have a shape after this: the backward pass comes soon enough.
            if any(id(p) in updated for p in own) and not any(map(nn.parameter.is_lazy, own)):
                self._attach(module)

    def _backward_begins(self, *_: object) -> None:
        if self._pending and not backward_runs():
            self._attach(None)
        if self._first_steps and not self._pending:
            self._remove_first_steps()

    def _first_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 (torch's)
        # A hook of the optimizer itself: those of all optimizers have had their turn, and attaching may add to them.
        if not self._pending or torch.compiler.is_compiling():
            return None
        with _finding:
            scope = self._attach(None)
            return scope.before_step(optimizer, args, kwargs) if scope is not None else None
        return None

    def _any_step(self, optimizer: Optimizer, *_: object) -> None:
        """An optimizer that nobody has seen being made: one that was unpickled, say."""
        if not torch.compiler.is_compiling() and optimizer not in self._known:
            with _finding:
                self._optimizer_made(optimizer)

    def _remove_first_steps(self) -> None:
        # Not while they run: their table may not change then.
        this = threading.get_ident()
        for made in [made for made in self._first_steps if made[0] == this]:
            self._first_steps.remove(made)
            made[1].remove()

    def _waiting(self) -> list[Optimizer]:
        return [optimizer for known in self._pending if (optimizer := known()) is not None]

    def _stop_watching_forward(self) -> None:
        if self._forward is not None:
            self._forward()
            self._forward = None

    def _attach(self, called: nn.Module | None) -> Scope | None:
        optimizers = self._waiting()
        if not optimizers:
            return None
        # First of all: what follows runs modules and makes tensors, and is not to be tried again.
        self._pending.clear()
        self._stop_watching_forward()
        from floatscope._attach.attachment import attach

        try:
            scope = attach(optimizers, called, self._living_scalers(), self._watch)
        except ValueError as error:
            logger.warning("not attached: %s; the program runs without telemetry", error)
            return None
        if scope is not None:
            self._scopes.append(scope)
        return scope

    def _living_scalers(self) -> list[torch.amp.GradScaler]:
        """First the one that was made or has scaled last: it may be that of the loss whose backward pass begins."""
        return [scaler for known in reversed(self._scalers) if (scaler := known()) is not None]


def _nothing(*_: object) -> None:
    pass


class _Before:
    """Sees calls of a function begin."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call(*args[:1])

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


class _After:
    """Sees calls of a function end: its first argument, and its result."""

    def __init__(self, call: Callable[..., None], told: Callable[[object], None] = lambda result: None) -> None:
        self._call = call
        self._told = told

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self._call(*args[:1])
        self._told(result)
