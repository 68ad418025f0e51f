"""What an ``accelerate.Accelerator`` tells: the losses, the model and the optimizer, the steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import accelerate
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from floatscope._attach.attachment import steps_before
from floatscope._guard import Guard
from floatscope._patches import Observer, observe
from floatscope.integrations._arguments import plain
from floatscope.integrations._deepspeed import is_engine, of_engine
from floatscope.integrations._training import FrameworkTraining, is_claimed, leave, take

__all__ = ["Loop", "hear_losses"]

_preparing = Guard("an Accelerator has prepared a model")
_beginning = Guard("a prepared model was called")


def hear_losses(training: FrameworkTraining) -> Callable[[], None]:
    """Tell ``training`` every micro-batch's own loss; returns the undoing."""
    return observe(Accelerator, "backward", _Backward(training))


class _Backward:
    """Sees ``backward(self, loss, **kwargs)``, which divides the loss by the number of micro-batches itself."""

    def __init__(self, training: FrameworkTraining) -> None:
        self._training = training

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        accelerator, loss = args[0], args[1] if len(args) > 1 else kwargs.get("loss")
        self._training.add_raw_loss(loss, 1.0 / accelerator.gradient_accumulation_steps)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


class Loop:
    """A loop around an Accelerator: the model that it prepares with an optimizer is watched.

    Several are left to what waits for plain loops; without ``floatscope run`` the first one is watched. That begins
    with the model's first forward pass in training mode, when the run's configuration is complete and a Trainer, which
    uses an Accelerator too, has spoken up. A step ends where the next forward pass begins.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self.training = FrameworkTraining(options, hear_losses)
        self.configuration: dict[str, object] = {}
        """What the user says of the run."""
        self.kept: dict[str, Any] = {}
        """What a saved state says of it."""
        self._models: list[weakref.ref[nn.Module]] = []
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._left: weakref.WeakSet[Accelerator] = weakref.WeakSet()
        """Those of several models."""
        self._first: Callable[[], None] = _nothing
        """Removes the hook that waits for the first forward pass."""
        self._undo: list[Callable[[], None]] = []
        self.concerns: Callable[[Accelerator], bool] = lambda _: True
        """Whether an Accelerator is one of ours."""

    def install(self) -> None:
        """Wait for a model."""
        self.hear("prepare", _Preparing(self))

    def hear(self, method: str, observer: Observer) -> None:
        """Have ``observer`` see the calls of a method of Accelerators, until this is removed."""
        self._undo.append(observe(Accelerator, method, observer))

    def remove(self) -> None:
        """Wait no longer, and send what is left."""
        self._first()
        while self._undo:
            self._undo.pop()()
        self.training.end()

    def prepared(self, accelerator: Accelerator, results: tuple[object, ...]) -> None:
        """``accelerator`` has prepared ``results``."""
        if self.training.running or accelerator in self._left or not self.concerns(accelerator):
            return
        models = [one for one in results if isinstance(one, nn.Module) and not is_claimed(one)]
        self._models += [weakref.ref(m) for m in models if any(p.requires_grad for p in m.parameters())]
        self._optimizers.update(one.optimizer for one in results if isinstance(one, AcceleratedOptimizer))
        known = [m for reference in self._models if (m := reference()) is not None]
        if not self._optimizers or not known:
            return
        updated = {id(p) for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]}
        trained = [m for m in known if any(id(p) in updated for p in m.parameters())] or known
        self._first()
        if len(trained) > 1 and leave(self._optimizers):
            # Which of them a step belongs to, the loop alone shows.
            self._left.add(accelerator)
            self._models.clear()
            return
        take(self._optimizers)
        model = trained[0]
        first = _FirstForward(self, accelerator)
        # Before that of an engine of DeepSpeed, which knows less of the loop.
        first.remove = model.register_forward_pre_hook(first, prepend=True).remove
        self._first = first.remove

    def begin(self, model: Any, accelerator: Any) -> None:  # noqa: ANN401 (a module, or an engine around one)
        """Watch ``model``, if nobody does."""
        steps = self.kept.get("steps")
        inside = model
        facts: dict[str, object] = {}
        arguments: dict[str, dict[str, object]] = {}
        if is_engine(model):
            inside, before = model.module, model.global_steps
            facts, arguments["deepspeed"] = of_engine(model)
        else:
            before = steps_before(self._optimizers)
        self._models.clear()
        self._optimizers.clear()
        scaler = accelerator.scaler
        self.training.begin(
            inside,
            scaler=scaler if isinstance(scaler, torch.amp.GradScaler) else None,
            first_step=steps if isinstance(steps, int) else before,
            run=self.kept.get("run"),
            facts={
                "framework": {"name": "accelerate", "version": accelerate.__version__},
                "declared_precision": {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision),
                "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
                **facts,
            },
            arguments={
                **arguments,
                "accelerate": {
                    "distributed_type": str(accelerator.distributed_type),
                    **{str(name): plain(value) for name, value in self.configuration.items()},
                },
            },
            ends_at_forward=True,
        )


class _Preparing:
    """Sees ``prepare(self, *args, device_placement=None)``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        with _preparing:
            self._loop.prepared(args[0], result if isinstance(result, tuple) else (result,))


class _FirstForward:
    """A forward pre-hook that begins the watching, and removes itself."""

    def __init__(self, loop: Loop, accelerator: Accelerator) -> None:
        self._loop = loop
        self._accelerator = accelerator
        self.remove: Callable[[], None] = _nothing

    def __call__(self, model: nn.Module, args: tuple[object, ...]) -> None:
        if model.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            with _beginning:
                self.remove()
                self._loop.begin(model, self._accelerator)


def _nothing() -> None:
    pass
