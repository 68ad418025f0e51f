"""Notes the checkpoints that a training saves: where, and after how many steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from floatscope import wire
from floatscope._attach.masking import masked
from floatscope._patches import observe

__all__ = ["follow", "on_import"]

_MOST = 1000
"""Events of one process: a program may save what is no checkpoint, as often as it likes."""

_PATHS = {
    "torch": (("save", "f", 1),),
    "safetensors.torch": (("save_file", "filename", 1),),
    # Keywords only.
    "torch.distributed.checkpoint": (("save", "checkpoint_id", 99), ("async_save", "checkpoint_id", 99)),
}
"""By library its functions, each with the name and the place of the argument that is a path."""

_told = 0


def on_import(module: ModuleType) -> None:
    """Follow what the library ``module`` saves, for as long as the process lives."""
    follow(module)


def follow(module: ModuleType) -> Callable[[], None]:
    """Have the checkpoints noted that functions of ``module`` save; returns the undoing."""
    undo = [
        observe(module, name, _Saving(argument, at))
        for name, argument, at in _PATHS[module.__name__]
        if name in vars(module)
    ]

    def undo_all() -> None:
        for one in undo:
            one()

    return undo_all


class _Saving:
    """Sees a function that saves to the path in its argument ``name``, the one ``at`` of those without a name."""

    def __init__(self, name: str, at: int) -> None:
        self._name, self._at = name, at

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        path = args[self._at] if len(args) > self._at else kwargs.get(self._name)
        if isinstance(path, str | os.PathLike):
            _tell(os.fspath(path))


def _tell(path: str | bytes) -> None:
    global _told
    attached = sys.modules.get("floatscope._scope")
    if attached is None or _told >= _MOST:
        return
    for scope in attached.scopes():
        _told += 1
        # After the step that is done: the next one may never come.
        detail = {"path": masked(os.fsdecode(path)), "steps": scope.steps_done}
        scope.tell(wire.Event(step=max(0, scope.steps_done - 1), kind="checkpoint", detail=detail))
