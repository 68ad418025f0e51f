"""Lightning: each Trainer gets the callback, by its entry point for such things where floatscope is installed."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from floatscope._patches import observe

__all__ = ["callbacks", "on_import"]


def callbacks() -> list[Any]:
    """What the entry point ``lightning.pytorch.callbacks_factory`` gives: nothing without ``floatscope run``."""
    if os.environ.get("FLOATSCOPE_ATTACH") != "1" or os.environ.get("FLOATSCOPE_DISABLED", "") not in ("", "0"):
        return []
    return [_attached()]


def _attached() -> Any:  # noqa: ANN401 (its class needs Lightning)
    from floatscope._attach.frameworks._lightning_callback import AttachedCallback

    return AttachedCallback()


class _Making:
    """Sees ``Trainer.__init__``: in an environment without floatscope's metadata no entry point is found."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        from floatscope._attach.frameworks._lightning_callback import AttachedCallback

        trainer = args[0]
        if not any(isinstance(callback, AttachedCallback) for callback in trainer.callbacks):
            # Those that save checkpoints come last.
            trainer.callbacks.insert(0, _attached())


def on_import(trainer: ModuleType) -> None:
    """``lightning.pytorch.trainer.trainer`` was imported."""
    observe(trainer.Trainer, "__init__", _Making())
