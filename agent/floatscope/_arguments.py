"""Whether what ``watch`` was given can be watched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from floatscope._deepspeed import is_deepspeed_optimizer, model_parameters
from floatscope._gradients import parameters_of
from floatscope._megatron import is_megatron_optimizer, megatron_parameters
from floatscope._operands import CASTS, CastsOperands, Operand
from floatscope._own_ops import OwnOperations
from floatscope._zero import is_spread

__all__ = ["Optimizer", "Optimizers", "checked"]

Optimizer = torch.optim.Optimizer | Any
"""One of torch, of DeepSpeed or of Megatron, whose types are the user's to import."""
Optimizers = Optimizer | Sequence[Optimizer] | None


def checked(model: object, optimizer: Optimizers, scaler: object) -> Sequence[Optimizer]:
    """The optimizers, where a watched training can be made of all three; else ``ValueError`` says what to do."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise ValueError("model: it has no parameters, so there is nothing to watch; pass the module that is trained")
    optimizers = _listed(optimizer)
    parameters = set(model.parameters())
    for number, given in enumerate(optimizers):
        if not any(p in parameters for p in _updated_by(given)):
            hint = "create it from the parameters of the model that you pass"
            if any(is_spread(p) for p in parameters):
                hint = "pass what deepspeed.initialize returned as the optimizer, or none"
            raise ValueError(f"optimizer {number} ({type(given).__name__}) holds no parameter of the model; {hint}")
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise ValueError(f"scaler: expected torch.amp.GradScaler, got {type(scaler).__name__}")
    for name, module in model.named_modules():
        if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
            raise ValueError(
                f"{name or 'model'}: its parameters have no shape yet; run one batch through the model first"
            )
        if isinstance(module, CastsOperands):
            _check_operands(name, module)
    return optimizers


def _listed(optimizer: object) -> list[Optimizer]:
    if optimizer is None:
        return []
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]  # which may be iterable
    # A network may be iterable too, over its layers.
    listed: list[Any] = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for one in listed:
        if not (isinstance(one, torch.optim.Optimizer) or is_deepspeed_optimizer(one) or is_megatron_optimizer(one)):
            wrong = one if isinstance(optimizer, list | tuple) else optimizer
            raise ValueError(
                f"optimizer: expected torch.optim.Optimizer or a sequence of them, got {type(wrong).__name__}"
            )
    return listed


def _updated_by(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    if isinstance(optimizer, torch.optim.Optimizer):
        return parameters_of(optimizer)
    return megatron_parameters(optimizer) if is_megatron_optimizer(optimizer) else model_parameters(optimizer)


def _check_operands(name: str, module: CastsOperands) -> None:
    with OwnOperations():
        try:
            operands = dict(module.floatscope_operands())
        except Exception as error:
            raise ValueError(f"{name}: floatscope_operands() raised {type(error).__name__}: {error}") from error
    if unknown := set(operands) - set(CASTS):
        raise ValueError(f"{name}: unknown operands {sorted(unknown, key=str)}; known are {', '.join(CASTS)}")
    for kind, operand in operands.items():
        if not isinstance(operand, Operand):
            raise ValueError(f"{name}: operand {kind}: expected floatscope.Operand, got {type(operand).__name__}")
