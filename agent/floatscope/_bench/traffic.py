"""How many bytes a recorder must read, and how fast this machine moves bytes: together the least time it can take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from statistics import median

import torch
from torch import nn

from floatscope._bench.training import Training

__all__ = ["copy_bandwidth", "count_bytes"]

_COPIES = 12
_IN_A_ROW = 4
_SIZE = {"cuda": 4 << 30, "cpu": 64 << 20}  # bytes; many times the last cache


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read plus bytes written per second by a large copy on ``device``: the median of several."""
    source = torch.empty(_SIZE[device.type], dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(_COPIES):
        if device.type == "cuda":
            torch.cuda.synchronize()
        # They take milliseconds, beside which one launch and one wait do not count.
        begin = time.perf_counter()
        for _ in range(_IN_A_ROW):
            target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / _IN_A_ROW)
    return 2 * source.nbytes / median(seconds)


def count_bytes(training: Training) -> dict[str, int]:
    """Bytes of what one step of an eager ``training`` makes, by group; takes a step.

    gradients, weights: of every parameter. outputs: of every Linear and LayerNorm. linear: of every Linear only.
    operands: inputs and output gradients of every Linear. leaves: outputs of every module without children. modules:
    inputs, outputs and own parameters of every module.
    """
    counted: Counter[str] = Counter()

    def after_forward(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        given, made = _bytes(args), _bytes((output,))
        counted["modules"] += given + made + _bytes(module.parameters(recurse=False))
        if isinstance(module, nn.Linear | nn.LayerNorm):
            counted["outputs"] += made
        if isinstance(module, nn.Linear):
            counted["linear"] += made
            counted["operands"] += given + made
        if next(module.children(), None) is None:
            counted["leaves"] += made

    def before_optimizer() -> None:
        counted["gradients"] += _bytes(p.grad for p in training.model.parameters())

    handles = [module.register_forward_hook(after_forward) for module in training.model.modules()]
    before, training.before_optimizer = training.before_optimizer, before_optimizer
    training.step()
    training.before_optimizer = before
    for handle in handles:
        handle.remove()
    counted["weights"] = _bytes(training.model.parameters())
    return dict(counted)


def _bytes(values: Iterable[object]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
