"""DeepSpeed: an engine that a loop of its own drives. What its ranks have is read where it is, without a collective."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn

from floatscope._guard import Guard
from floatscope._patches import observe
from floatscope.integrations._deepspeed import of_engine
from floatscope.integrations._training import FrameworkTraining, is_claimed, take

__all__ = ["on_import"]

_beginning = Guard("a DeepSpeed engine was called")


class _Initializing:
    """Sees ``initialize(...)``, which returns the engine, its optimizer, a data loader and a scheduler."""

    def __init__(self, version: str) -> None:
        self._version = version

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:  # noqa: ANN401
        engine, optimizer = result[0], result[1]
        # A Trainer that uses DeepSpeed knows more.
        if not isinstance(engine, nn.Module) or is_claimed(engine):
            return
        take([optimizer])
        first = _FirstForward(self._version)
        first.hook = engine.register_forward_pre_hook(first)


class _FirstForward:
    """A forward pre-hook of the engine that begins the watching, and removes itself."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.hook: Any = None

    def __call__(self, engine: Any, args: tuple[object, ...]) -> None:  # noqa: ANN401
        if engine.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            with _beginning:
                self.hook.remove()
                self._begin(engine)

    def _begin(self, engine: Any) -> None:  # noqa: ANN401
        training = FrameworkTraining({}, lambda heard: observe(type(engine), "backward", _Backward(heard, engine)))
        precision = "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32"
        facts, arguments = of_engine(engine)
        training.begin(
            engine.module,
            first_step=engine.global_steps,
            facts={
                "framework": {"name": "deepspeed", "version": self._version},
                "declared_precision": precision,
                **facts,
            },
            arguments={"deepspeed": arguments},
            ends_at_forward=True,
        )


class _Backward:
    """Sees ``backward(self, loss, ...)``, which divides the loss by the number of micro-batches itself."""

    def __init__(self, training: FrameworkTraining, engine: Any) -> None:  # noqa: ANN401
        self._training = training
        self._engine = engine

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[0] is self._engine:
            loss = args[1] if len(args) > 1 else kwargs.get("loss")
            self._training.add_raw_loss(loss, 1.0 / self._engine.gradient_accumulation_steps())

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


def on_import(deepspeed: ModuleType) -> None:
    """``deepspeed`` was imported."""
    observe(deepspeed, "initialize", _Initializing(deepspeed.__version__))
