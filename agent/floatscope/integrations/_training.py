"""One training that a framework drives: its scope, and the step that waits for what the framework says about it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from floatscope import wire
from floatscope._attach import declared, loops
from floatscope._attach.masking import masked, plain
from floatscope._attach.models import unwrapped
from floatscope._config import configured
from floatscope._guard import Guard
from floatscope._own_ops import OwnOperations, capturing
from floatscope._placement import rank_and_world
from floatscope._run_name import run_name
from floatscope._scope import Scope, scope_of, watch

__all__ = ["FrameworkTraining", "check_options", "claim", "end_stale", "is_claimed", "leave", "take"]

_driving = Guard("a framework's callback ran", charge="step")
_OURS = frozenset(
    (
        *("clip_coef", "clip_norm", "grad_norm", "loss_scale", "lr", "micro_batches", "raw_loss", "raw_loss_max"),
        *("raw_loss_nonfinite", "skipped", "step_time_s"),
    )
)
"""Scalars that the agent measures by itself; what a framework logs under the same name is called ``logged/NAME``."""
_claimed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_running: weakref.WeakSet[FrameworkTraining] = weakref.WeakSet()


def check_options(options: Mapping[str, object]) -> None:
    """``ValueError`` for options of ``watch`` that make no sense, where the user writes them and not at the start."""
    known = {name: value for name, value in options.items() if name not in ("config", "on_alert", "_sink")}
    configured(options.get("config"), known, os.environ)  # type: ignore[arg-type]


class _RawLoss:
    """Of the micro-batches of a step the sum of their shares in its loss, the largest share, and how many they are.

    On their device, in float32.
    """

    def __init__(self, share: torch.Tensor) -> None:
        self.total, self._largest, self._count = share, share.clone(), 1

    def add(self, share: torch.Tensor) -> None:
        """Another micro-batch."""
        self.total = self.total.to(share.device).add_(share)
        self._largest = torch.maximum(self._largest.to(share.device), share)
        self._count += 1

    def scalars(self) -> dict[str, object]:
        """As the run tells it. The largest share times their number is what compares with the sum of all."""
        if self._count == 1:
            return {"raw_loss": self.total}
        largest = self._largest * self._count
        return {"raw_loss": self.total, "raw_loss_max": largest, "micro_batches": float(self._count)}


class FrameworkTraining:
    """Drives a scope as a framework's events come in. No method raises, and none waits for a device.

    A step ends where the next one begins, so that what is logged about it in between is a part of it.
    """

    def __init__(
        self,
        options: Mapping[str, object],
        listen: Callable[[FrameworkTraining], Callable[[], None]] = lambda _: _nothing,
    ) -> None:
        """``options`` are those of ``watch``; ``listen`` installs what the training hears by, and gives the removal."""
        self._options = dict(options)
        self._listen = listen
        self._deafen = _nothing
        self._scope: Scope | None = None
        self._steps = 0
        """How many had been done at the end of a training."""
        self._waits = False
        """Whether the optimizer's step is done and the scope's is not."""
        self._ends_at_forward = False
        self._raw: _RawLoss | None = None
        self._raw_step = 0
        """The step that it belongs to, where steps end by themselves."""
        self.model: Callable[[], nn.Module | None] = _no_model
        """A weak reference to what is watched."""
        self.run: str | None = None
        """Name of the run, once it has begun."""

    @property
    def running(self) -> bool:
        """Whether a scope of ours is open."""
        return self._scope is not None

    @property
    def steps(self) -> int:
        """How many steps are done, from the first of all attempts on."""
        return self._steps if self._scope is None else self._scope.steps_done

    def begin(
        self,
        model: nn.Module,
        *,
        scaler: torch.amp.GradScaler | None = None,
        first_step: int = 0,
        run: str | None = None,
        facts: Mapping[str, object],
        arguments: Mapping[str, Mapping[str, object]],
        ends_at_forward: bool = False,
    ) -> None:
        """Watch ``model`` from ``first_step`` on, unless somebody does already; ``facts`` join its configuration.

        So do ``arguments``, by the name of who has declared them; secrets are masked in both. ``run`` is the name to go
        on with where the user gave none. With ``ends_at_forward`` nobody says when a step is done: it is when the next
        forward pass begins, and the raw loss is also the ``loss``.
        """
        with _driving:
            if self._scope is not None or ((present := scope_of(model)) is not None and not present.driven):
                return
            options: dict[str, Any] = {"first_step": first_step, **self._options}
            chosen = configured(options.get("config"), {"run": options.get("run")}, os.environ).run
            # Named here, so that a checkpoint can tell under which name to go on.
            self.run = options["run"] = chosen or run or run_name(rank_and_world()[1], os.environ)
            declared.declare_precision(model, scaler)
            for source, values in arguments.items():
                declared.declare(source, values)
            # Without the wrapper's name before that of each layer, as in a plain loop.
            self._scope = watch(unwrapped(model), scaler=scaler, _facts=_masked(facts), **options)
            self._waits, self._ends_at_forward, self._raw = False, ends_at_forward, None
            self._scope.time_phases()
            if ends_at_forward:
                self._scope.end_at_forward()
            self._deafen = self._listen(self)
            self.model = weakref.ref(model)
            _running.add(self)

    def add_raw_loss(self, loss: object, share: float = 1.0) -> None:
        """Add ``share`` of a micro-batch's own ``loss`` to that of the step. What is no tensor of one element is none.

        Stays on its device, in float32.
        """
        if self._scope is None:
            return
        with _driving, OwnOperations():
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or capturing():
                return
            if self._ends_at_forward and self._raw_step != self._scope.steps:
                self._raw, self._raw_step = None, self._scope.steps
            # A copy: what compiled code returns is overwritten by its next call.
            own = loss.detach().reshape(()).to(torch.float32, copy=True)
            own = own if share == 1.0 else own.mul_(share)
            if self._raw is None:
                self._raw = _RawLoss(own)
            else:
                self._raw.add(own)
            if self._ends_at_forward:
                self._scope.log(loss=self._raw.total, **self._raw.scalars())

    def step_done(self, *, loss_too: bool = False) -> None:
        """The optimizer has stepped, or its step was skipped. With ``loss_too`` the raw loss is also the ``loss``."""
        if self._scope is None:
            return
        with _driving:
            self.end_waiting()
            self._waits = True
            if self._raw is not None:
                named = {"loss": self._raw.total} if loss_too else {}
                self._scope.log(**named, **self._raw.scalars())
                self._raw = None

    def log(self, values: Mapping[str, object]) -> None:
        """Attach what the framework logs and is a number to the step in progress."""
        if self._scope is None:
            return
        with _driving:
            numbers = {
                f"logged/{name}" if name in _OURS else str(name): value
                for name, value in values.items()
                if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
            }
            self._scope.log(**numbers)

    def saved(self, name: str) -> None:
        """Note the checkpoint ``name``, of the steps that are done."""
        if self._scope is not None:
            with _driving:
                steps = self._scope.steps_done
                detail: dict[str, str | int | float | bool | None] = {"name": masked(name), "steps": steps}
                self._scope.tell(wire.Event(step=max(0, steps - 1), kind="checkpoint", detail=detail))

    def end_waiting(self) -> None:
        """End the step whose optimizer is done: another one begins."""
        if self._scope is not None and self._waits:
            self._waits = False
            with _driving:
                self._scope.step()

    def end(self, *, failed: bool = False) -> None:
        """The training is over: send what is left, for at most 5 s."""
        with _driving:
            self.end_waiting()
            self._steps = self.steps
            scope, self._scope, self._raw = self._scope, None, None
            (deafen, self._deafen), self.model = (self._deafen, _nothing), _no_model
            _running.discard(self)
            deafen()
            if scope is not None and failed:
                scope.fail()
            elif scope is not None:
                scope.close()


def claim(model: nn.Module) -> None:
    """A Trainer has ``model``: what it uses to train it is none of a loop of its own."""
    _claimed.add(model)


def is_claimed(model: nn.Module) -> bool:
    """Whether a Trainer has ``model``, or what it wraps."""
    return any(module in _claimed for module in model.modules())


def take(optimizers: Iterable[object]) -> None:
    """Nobody else needs to look for what ``optimizers`` update; each may be wrapped in that of a framework."""
    if (waiting := loops.current()) is not None:
        with _driving:
            for optimizer in _of_torch(optimizers):
                waiting.optimizer_taken(optimizer)


def leave(optimizers: Iterable[object]) -> bool:
    """Undo ``take``: they are those of a plain loop. False where nothing waits for one."""
    if (waiting := loops.current()) is None:
        return False
    with _driving:
        for optimizer in _of_torch(optimizers):
            waiting.optimizer_left(optimizer)
    return True


def _of_torch(optimizers: Iterable[object]) -> Iterator[torch.optim.Optimizer]:
    for optimizer in optimizers:
        inner: Any = optimizer
        while inner is not None:
            if isinstance(inner, torch.optim.Optimizer):
                yield inner
            inner = getattr(inner, "optimizer", None)


def _masked(facts: Mapping[str, object]) -> Mapping[str, object]:
    """``facts`` without secrets and user names."""
    return {name: plain(value, name) for name, value in facts.items()}


def end_stale(model: nn.Module) -> None:
    """End what a training of ``model`` has left that was given up: another one begins."""
    for training in tuple(_running):
        if training.model() is model:
            training.end(failed=True)


def _nothing() -> None:
    pass


def _no_model() -> None:
    return None
