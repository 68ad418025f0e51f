"""Accelerate: what an Accelerator prepares is watched, and what it logs is taken."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from floatscope.integrations._accelerator import Loop

__all__ = ["on_import"]


class _Logging:
    """Sees ``log(self, values, step=None, log_kwargs={})``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = args[1] if len(args) > 1 else kwargs.get("values")
        if isinstance(values, dict):
            self._loop.training.log(values)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


class _Starting:
    """Sees ``init_trackers(self, project_name, config=None, init_kwargs={})``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        config = args[2] if len(args) > 2 else kwargs.get("config")
        if isinstance(config, dict):
            self._loop.configuration.update(config)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


class _Ending:
    """Sees ``end_training(self)``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._loop.training.end()

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        pass


def _has_our_tracker(accelerator: Any) -> bool:  # noqa: ANN401
    return any(getattr(tracker, "name", None) == "floatscope" for tracker in accelerator.log_with)


def on_import(accelerate: ModuleType) -> Loop:
    """``accelerate`` was imported. Returns what was installed."""
    loop = Loop({})
    loop.concerns = lambda accelerator: not _has_our_tracker(accelerator)
    loop.install()
    for name, observer in (("log", _Logging), ("init_trackers", _Starting), ("end_training", _Ending)):
        loop.hear(name, observer(loop))
    return loop
