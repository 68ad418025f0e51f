"""Observing functions of other libraries: each is wrapped once, however many observers, and restored after the last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from floatscope._guard import Guard
from floatscope._own_ops import OwnOperations, why_not_now

__all__ = ["Observer", "active_patches", "observe"]


class Observer(Protocol):
    """Sees the calls of one function. Neither method may change the arguments or the result."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the call."""

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """After a call that returned."""


Raised = Callable[[tuple[Any, ...], dict[str, Any]], None]


class _Patch:
    def __init__(self, owner: Any, name: str) -> None:  # noqa: ANN401 (a class or a module)
        original = vars(owner)[name]
        guard = Guard(f"observing {name}", charge="gradients")

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            # First of all, and without a context manager: so Dynamo traces the function as if nobody watched.
            if torch.compiler.is_compiling() or why_not_now() is not None:
                return original(*args, **kwargs)
            for observer in tuple(self.observers):
                with guard, OwnOperations():
                    observer.enter(args, kwargs)
            try:
                result = original(*args, **kwargs)
            except Exception:
                for raised in tuple(self.raised):
                    with guard, OwnOperations():
                        raised(args, kwargs)
                raise
            for observer in tuple(self.observers):
                with guard, OwnOperations():
                    observer.leave(args, kwargs, result)
            return result

        self.observers: list[Observer] = []
        self.raised: list[Raised] = []
        self._owner, self._name, self._original, self._wrapper = owner, name, original, wrapper
        setattr(owner, name, wrapper)

    def restore(self) -> None:
        # Somebody may have wrapped the wrapper since; it then stays, without observers.
        if vars(self._owner)[self._name] is self._wrapper:
            setattr(self._owner, self._name, self._original)


_patches: dict[tuple[int, str], _Patch] = {}


def observe(owner: Any, name: str, observer: Observer, raised: Raised | None = None) -> Callable[[], None]:  # noqa: ANN401
    """Show ``observer`` every call of ``owner.name`` (looked up on the class that defines it); returns the undoing.

    ``raised`` is called with the arguments of a call that has raised an ``Exception``, before that goes on.
    """
    if isinstance(owner, type):
        owner = next(cls for cls in owner.__mro__ if name in vars(cls))
    key = (id(owner), name)
    patch = _patches.get(key)
    if patch is None:
        patch = _patches[key] = _Patch(owner, name)
    patch.observers.append(observer)
    if raised is not None:
        patch.raised.append(raised)

    def undo() -> None:
        patch.observers.remove(observer)
        if raised is not None:
            patch.raised.remove(raised)
        if not patch.observers and _patches.get(key) is patch:
            del _patches[key]
            patch.restore()

    return undo


def active_patches() -> list[str]:
    """Names of the functions that are wrapped at the moment."""
    return [name for _, name in _patches]
