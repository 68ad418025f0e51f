"""Stand-ins for the recorders that the bench compares with, one module for each, with as much of them as it uses.

Each hangs a hook of its kind, so that what is left behind would be found, and notes what it was asked for.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["asked", "doubles"]

asked: list[tuple[object, ...]] = []
"""What was asked of any of them, in order."""


class _Run:
    def __init__(self) -> None:
        self._handles: list[Any] = []

    def watch(self, model: nn.Module, *, log: str, log_freq: int) -> None:
        asked.append(("watch", log, log_freq))
        self._handles = [p.register_hook(lambda gradient: None) for p in model.parameters()]  # type: ignore[no-untyped-call]

    def log(self, values: dict[str, object]) -> None:
        asked.append(("log", *values))

    def unwatch(self, model: nn.Module) -> None:
        while self._handles:
            self._handles.pop().remove()

    def finish(self) -> None:
        asked.append(("finish",))


class _SummaryWriter:
    def __init__(self, folder: str) -> None:
        assert Path(folder).is_dir()

    def add_histogram(self, tag: str, values: torch.Tensor, step: int) -> None:
        asked.append(("add_histogram", tag, tuple(values.shape), step))

    def close(self) -> None:
        asked.append(("close",))


class _DebugUnderflowOverflow:
    def __init__(self, model: nn.Module) -> None:
        for module in model.modules():
            module.register_forward_hook(lambda module, args, output: None)
        asked.append(("debug", len(list(model.modules()))))


class _Session:
    def __init__(self, handle: Any) -> None:  # noqa: ANN401 (torch's handle of a hook)
        self._handle = handle

    def close(self) -> None:
        self._handle.remove()
        asked.append(("close",))


def _watch(model: nn.Module, optimizer: torch.optim.Optimizer, *, run_dir: Path, **options: object) -> _Session:
    asked.append(("watch", *options.items(), run_dir.is_dir()))
    return _Session(optimizer.register_step_post_hook(lambda *_: None))


def doubles() -> dict[str, types.ModuleType]:
    """By the name that they are imported by."""
    contents: dict[str, dict[str, object]] = {
        "wandb": {"Settings": types.SimpleNamespace, "init": lambda **_: _Run()},
        "torch.utils.tensorboard": {"SummaryWriter": _SummaryWriter},
        "transformers.debug_utils": {"DebugUnderflowOverflow": _DebugUnderflowOverflow},
        "pulsegrad": {"watch": _watch},
    }
    modules = {}
    for name, content in contents.items():
        module = modules[name] = types.ModuleType(name)
        vars(module).update(content)
    return modules
