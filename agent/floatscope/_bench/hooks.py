"""Every place where a recorder can hang a hook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from floatscope._bench.training import Training

__all__ = ["all_hooks", "module_hooks"]

Hooks = dict[int, Any]


def module_hooks(model: nn.Module) -> Iterator[Hooks]:
    """Of every module, those before and after its forward pass."""
    for module in model.modules():
        yield module._forward_pre_hooks
        yield module._forward_hooks


def all_hooks(training: Training) -> Iterator[Hooks]:
    """Of modules, parameters and the optimizer, and those that hold for all modules and optimizers."""
    yield from module_hooks(training.model)
    for parameter in training.model.parameters():
        for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
            if hooks is not None:
                yield hooks
    yield training.optimizer._optimizer_step_pre_hooks
    yield training.optimizer._optimizer_step_post_hooks
    yield torch_module._global_forward_pre_hooks
    yield torch_module._global_forward_hooks
    yield torch_optimizer._global_optimizer_pre_hooks
    yield torch_optimizer._global_optimizer_post_hooks
