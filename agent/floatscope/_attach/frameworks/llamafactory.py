"""LLaMA-Factory: its Trainers are those of transformers; what it is told to do joins their configuration."""

from __future__ import annotations

from types import ModuleType

from floatscope.integrations._llamafactory import observe_arguments

__all__ = ["on_import"]


def on_import(tuner: ModuleType) -> None:
    """``llamafactory.train.tuner`` was imported."""
    observe_arguments()
