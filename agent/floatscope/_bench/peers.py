"""Other recorders, each the package itself, attached as its documentation says."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from floatscope._bench.hooks import module_hooks
from floatscope._bench.recorders import Recorder
from floatscope._bench.training import Training

__all__ = ["PEERS"]


class Wandb(Recorder):
    """``run.watch(model, log="gradients", log_freq=...)`` offline, and ``run.log`` in every step, which commits."""

    def __init__(self, every: int, frequency: int) -> None:
        super().__init__(every)
        self._frequency = frequency
        self._folder = tempfile.mkdtemp(prefix="floatscope-bench-")
        wandb = import_module("wandb")
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        self._run = wandb.init(project="bench", mode="offline", dir=self._folder, settings=settings)

    def attach(self, training: Training) -> None:
        self._model, self._number = training.model, 0
        self._run.watch(training.model, log="gradients", log_freq=self._frequency)

    def after_step(self, loss: torch.Tensor) -> None:
        self._number += 1
        # Not the loss: reading it would wait for the device, which is the user's choice and not the recorder's.
        self._run.log({"number": self._number})

    def detach(self) -> None:
        self._run.unwatch(self._model)

    def close(self) -> None:
        self._run.finish()
        shutil.rmtree(self._folder, ignore_errors=True)


class TensorBoard(Recorder):
    """``SummaryWriter.add_histogram`` of each gradient before the optimizer."""

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self._folder = tempfile.mkdtemp(prefix="floatscope-bench-")
        self._writer = import_module("torch.utils.tensorboard").SummaryWriter(self._folder)

    def attach(self, training: Training) -> None:
        self._named, self._number = list(training.model.named_parameters()), -1
        self._handle = training.optimizer.register_step_pre_hook(self._before_optimizer)

    def before_step(self) -> None:
        self._number += 1

    def _before_optimizer(self, *_: object) -> None:
        if self._number % self.every == 0:
            for name, parameter in self._named:
                self._writer.add_histogram(f"gradients/{name}", parameter.grad, self._number)

    def detach(self) -> None:
        self._handle.remove()

    def close(self) -> None:
        self._writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Transformers(Recorder):
    """``DebugUnderflowOverflow(model)``: a hook on every module."""

    def attach(self, training: Training) -> None:
        self._model = training.model
        self._before = {id(hooks): set(hooks) for hooks in module_hooks(training.model)}
        self._debug = import_module("transformers.debug_utils").DebugUnderflowOverflow(training.model)

    def detach(self) -> None:
        # It has no way to remove its hooks.
        for hooks in module_hooks(self._model):
            for key in set(hooks) - self._before[id(hooks)]:
                del hooks[key]


class Pulsegrad(Recorder):
    """``pulsegrad.watch(model, optimizer)`` with ``options``, its progress lines switched off."""

    def __init__(self, every: int, options: dict[str, Any]) -> None:
        super().__init__(every)
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="floatscope-bench-")
        os.environ.setdefault("PULSEGRAD_CONSOLE", "off")
        os.environ.setdefault("PULSEGRAD_LOG_LEVEL", "ERROR")
        with _home(self._folder):
            self._package = import_module("pulsegrad")

    def attach(self, training: Training) -> None:
        with _home(self._folder):
            self._session = self._package.watch(
                training.model, training.optimizer, run_dir=Path(self._folder), **self._options
            )

    def detach(self) -> None:
        self._session.close()

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _home(folder: str) -> Iterator[None]:
    """It keeps a store in the home directory, which the bench leaves alone."""
    before = os.environ.get("HOME")
    os.environ["HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before


PEERS: dict[str, Callable[[int], Recorder]] = {
    "wandb-1": lambda every: Wandb(every, 1),
    "wandb-100": lambda every: Wandb(every, 100),
    "tensorboard": TensorBoard,
    "transformers": Transformers,
    "pulsegrad-1": lambda every: Pulsegrad(every, {"k": 1}),
    "pulsegrad-10": lambda every: Pulsegrad(every, {}),
}
