"""The models and recorders that ``floatscope bench agent`` knows, by name. Needs no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MODELS", "RECORDERS", "ModelSpec", "Plan", "PlanError", "RecorderSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A training by size. ``depth`` 0 is an MLP of two hidden layers of ``width``; otherwise a decoder."""

    about: str
    device: str
    """Where it is measured when nobody names models: "cuda", "cpu", or "" for nowhere."""
    depth: int
    width: int
    batch: int
    heads: int = 0
    context: int = 0
    vocabulary: int = 0


MODELS = {
    "125m": ModelSpec(
        about="GPT-2 decoder, 12 layers", device="cuda", depth=12, width=768, heads=12, context=1024, batch=16,
        vocabulary=50304,
    ),
    "1.3b": ModelSpec(
        about="GPT-2 decoder, 24 layers", device="cuda", depth=24, width=2048, heads=16, context=2048, batch=8,
        vocabulary=50304,
    ),
    "125m-6": ModelSpec(
        about="the first with 6 layers, which halves the time to compile", device="", depth=6, width=768, heads=12,
        context=1024, batch=16, vocabulary=50304,
    ),
    "mlp": ModelSpec(about="MLP, batch 128", device="cpu", depth=0, width=1024, batch=128),
    "mlp-1024": ModelSpec(about="MLP, batch 1024", device="cpu", depth=0, width=1024, batch=1024),
    "transformer": ModelSpec(
        about="decoder, 4 layers", device="cpu", depth=4, width=256, heads=4, context=128, batch=8, vocabulary=2048
    ),
    "tiny": ModelSpec(
        about="decoder, 1 layer; to try the bench itself", device="", depth=1, width=32, heads=2, context=16, batch=2,
        vocabulary=64,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSpec:
    """How one recorder is measured."""

    about: str
    reads: tuple[str, ...] = ()
    """What it has to read in a step (``traffic.Bytes``); empty where that differs from step to step."""
    reads_compiled: tuple[str, ...] = ()
    """The same in a compiled training, where that is something else."""
    package: str = ""
    """The package it comes from, as imported and as installed."""
    paired: bool = True
    """Can be told to act in every second step. Others take turns with nobody, in blocks of steps."""
    period: int = 1
    """Steps after which what it does repeats; above 1 the figures are means over that many steps."""
    compiled: bool = False
    """Has a meaning in a compiled training."""
    seconds: float = 8.0
    """Time for its steps. Never less than one pair."""

    def missing(self) -> str:
        """What to ``pip install`` first; empty when all is there."""
        return self.package if self.package and importlib.util.find_spec(self.package) is None else ""


RECORDERS = {
    "nobody": RecorderSpec(about="nobody (noise)", compiled=True, seconds=30.0),
    "floatscope-gradients": RecorderSpec(
        about="floatscope.watch, gradients with histograms, every step",
        package="floatscope",
        reads=("gradients",),
        compiled=True,
        seconds=30.0,
    ),
    "floatscope-outputs": RecorderSpec(
        about="floatscope.watch, gradients and outputs, with histograms, every step",
        package="floatscope",
        reads=("gradients", "outputs"),
        reads_compiled=("gradients", "linear"),
        compiled=True,
        seconds=30.0,
    ),
    "floatscope-all": RecorderSpec(
        about="floatscope.watch, gradients, outputs and operands of linear layers, with histograms, every step",
        package="floatscope",
        reads=("gradients", "outputs", "operands"),
        reads_compiled=("gradients", "linear"),
        compiled=True,
        seconds=30.0,
    ),
    "floatscope-default": RecorderSpec(
        about="floatscope.watch, as it comes (mean)", package="floatscope", paired=False, period=100, seconds=30.0
    ),
    "floatscope-idle": RecorderSpec(
        about="floatscope.watch, attached and reading nothing", package="floatscope", paired=False, compiled=True
    ),
    "foreach-norms": RecorderSpec(
        about="torch._foreach_norm, inf and 2, of gradients", package="torch", reads=("gradients",), seconds=30.0
    ),
    "torch-gradients": RecorderSpec(
        about="8 statistics of gradients in torch operations", package="torch", reads=("gradients",)
    ),
    "torch-all": RecorderSpec(
        about="8 statistics of gradients and outputs in torch operations",
        package="torch",
        reads=("gradients", "outputs"),
    ),
    "wandb-1": RecorderSpec(about="wandb.watch(log_freq=1)", reads=("gradients",), package="wandb", paired=False),
    "wandb-100": RecorderSpec(
        about="wandb.watch(log_freq=100) (mean)", package="wandb", paired=False, period=100, seconds=30.0
    ),
    "tensorboard": RecorderSpec(
        about="TensorBoard add_histogram of each gradient",
        reads=("gradients",),
        package="tensorboard",
    ),
    "transformers": RecorderSpec(
        about="transformers DebugUnderflowOverflow",
        reads=("modules",),
        package="transformers",
        paired=False,
    ),
    "pulsegrad-1": RecorderSpec(
        about="pulsegrad.watch(k=1)",
        reads=("gradients", "weights", "leaves"),
        package="pulsegrad",
        paired=False,
    ),
    "pulsegrad-10": RecorderSpec(
        about="pulsegrad.watch, as it comes (mean)", package="pulsegrad", paired=False, period=10
    ),
}


class PlanError(ValueError):
    """What was asked for cannot be measured; the text says what can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure: names from ``MODELS`` and ``RECORDERS``."""

    device: str
    models: tuple[str, ...]
    recorders: tuple[str, ...]
    pairs: int
    compiled: bool

    @classmethod
    def of(cls, *, device: str, models: Sequence[str], recorders: Sequence[str], pairs: int, compiled: bool) -> Plan:
        """A checked plan; no name at all means every one that makes sense there. Raises ``PlanError``."""
        if unknown := [name for name in models if name not in MODELS]:
            raise PlanError(f"no model called {', '.join(unknown)}; there are {', '.join(MODELS)}")
        meaningful = [name for name, spec in RECORDERS.items() if spec.compiled or not compiled]
        if unknown := [name for name in recorders if name not in RECORDERS]:
            raise PlanError(f"no recorder called {', '.join(unknown)}; there are {', '.join(RECORDERS)}")
        if unknown := [name for name in recorders if name not in meaningful]:
            raise PlanError(f"not measured with --compile: {', '.join(unknown)}; only {', '.join(meaningful)}")
        return cls(
            device=device,
            models=tuple(models) or tuple(name for name, spec in MODELS.items() if spec.device == device),
            recorders=tuple(name for name in meaningful if name in recorders or not recorders),
            pairs=pairs,
            compiled=compiled,
        )
