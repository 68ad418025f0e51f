"""Functions of other libraries that are others for as long as somebody uses that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["WhileUsed", "replace"]


class WhileUsed:
    """What ``install`` does, from the first use to the end of the last; it gives the undoings."""

    def __init__(self, install: Callable[[], Iterable[Callable[[], None]]]) -> None:
        self._install = install
        self._users: list[object] = []
        self._undo: list[Callable[[], None]] = []

    def use(self) -> Callable[[], None]:
        """Returns what ends this use, which may be called again."""
        if not self._undo:
            self._undo.extend(self._install())
        token = object()
        self._users.append(token)

        def end() -> None:
            if token in self._users:
                self._users.remove(token)
            while self._undo and not self._users:
                self._undo.pop()()

        return end


def replace(owner: Any, name: str, ours: Callable[..., Any]) -> Callable[[], None]:  # noqa: ANN401 (a class or a module)
    """Put ``ours`` in the place of ``owner.name``; returns the undoing."""
    before = vars(owner).get(name)
    setattr(owner, name, ours)

    def undo() -> None:
        # Somebody may have put something else there since, which then stays.
        if vars(owner).get(name) is ours:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    return undo
