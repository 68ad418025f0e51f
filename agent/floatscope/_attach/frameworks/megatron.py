"""Megatron Core: what its wrapper for data parallelism has is watched, and what its schedules compute is the loss."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType
from typing import Any

import torch

from floatscope._attach.attachment import steps_before
from floatscope._guard import Guard
from floatscope._megatron import megatron_parameters
from floatscope._megatron_ranks import pipeline_group, tensor_group, wrappers
from floatscope._patches import observe
from floatscope.integrations._arguments import of_dataclass, plain
from floatscope.integrations._training import FrameworkTraining, is_claimed, take

__all__ = ["on_import"]

_beginning = Guard("a model of Megatron was called")
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_OPTIMIZERS = "megatron.core.optimizer.optimizer"
_trainings: weakref.WeakSet[FrameworkTraining] = weakref.WeakSet()
_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


class _Wrapping:
    """Sees ``DistributedDataParallel.__init__(self, config, ddp_config, module, ...)``."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        wrapper = args[0]
        if not is_claimed(wrapper):
            # It alone knows which ranks hold the same; its own name before each layer's tells nothing.
            wrappers.add(wrapper)
            first = _FirstForward()
            first.hook = wrapper.register_forward_pre_hook(first)


class _Optimizing:
    """Sees ``MegatronOptimizer.__init__(self, optimizer, ...)``."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        _optimizers.add(args[0])
        take([args[0].optimizer])


class _FirstForward:
    """A forward pre-hook of the wrapper that begins the watching, and removes itself."""

    def __init__(self) -> None:
        self.hook: Any = None

    def __call__(self, wrapper: Any, args: tuple[object, ...]) -> None:  # noqa: ANN401
        if wrapper.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            with _beginning:
                self.hook.remove()
                # Other chunks of an interleaved pipeline are parts of the same training.
                if not any(training.running for training in _trainings):
                    _begin(wrapper)


def _begin(wrapper: Any) -> None:  # noqa: ANN401
    training = FrameworkTraining({}, lambda heard: observe(sys.modules[_SCHEDULES], "backward_step", _Backward(heard)))
    config = wrapper.config
    own = set(wrapper.parameters())
    optimizers = [o for o in _optimizers if any(p in own for p in megatron_parameters(o))]
    _trainings.add(training)
    training.begin(
        wrapper.module,
        optimizers=optimizers,
        first_step=_first_step(optimizers),
        facts={
            "framework": {"name": "megatron", "version": sys.modules["megatron.core"].__version__},
            "declared_precision": "bf16" if config.bf16 else "fp16" if config.fp16 else "fp32",
            "distributed_optimizer": wrapper.ddp_config.use_distributed_optimizer,
            "tensor_parallel": tensor_group(wrapper).size(),
            "pipeline_parallel": pipeline_group(wrapper).size(),
        },
        arguments={"megatron": _arguments(config)},
        ends_at_forward=True,
    )


def _first_step(optimizers: list[Any]) -> int:
    """That of Megatron-LM, which also counts steps that it has loaded; in other programs as the optimizers count."""
    given = _of_megatron_lm()
    if given is not None:
        # The first is that of the step in progress; older versions have only that of the checkpoint.
        return given.get("curr_iteration", given.get("iteration")) or 0
    return steps_before(o.optimizer for o in optimizers if isinstance(o.optimizer, torch.optim.Optimizer))


def _arguments(config: object) -> dict[str, object]:
    """Those of Megatron-LM's command line; in a program of its own, the configuration of the model."""
    given = _of_megatron_lm()
    return of_dataclass(config) if given is None else {name: plain(value) for name, value in given.items()}


def _of_megatron_lm() -> dict[str, Any] | None:
    """Its arguments, which it keeps its count of steps in; None where another program trains."""
    arguments = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)
    return None if arguments is None else vars(arguments)


class _Backward:
    """Sees ``backward_step(input_tensor, output_tensor, output_tensor_grad, ...)`` of a micro-batch.

    At the last stage, which is given no gradient, the output is the loss: divided by their number, and not scaled yet.
    """

    def __init__(self, training: FrameworkTraining) -> None:
        self._training = training

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(zip(("input_tensor", "output_tensor", "output_tensor_grad"), args, strict=False)) | kwargs
        output, gradient = (
            value[0] if isinstance(value := named[name], list) else value
            for name in ("output_tensor", "output_tensor_grad")
        )
        if gradient is None:
            self._training.add_raw_loss(output)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


def on_import(module: ModuleType) -> None:
    """The module of Megatron's wrapper, or that of its optimizers, was imported."""
    if module.__name__ == _OPTIMIZERS:
        observe(module.MegatronOptimizer, "__init__", _Optimizing())
    else:
        observe(module.DistributedDataParallel, "__init__", _Wrapping())
