"""Calls a function after a module was imported, whoever imports it. Light: it runs in each attached Python process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["AfterImport"]


class AfterImport:
    """Finds nothing itself: it has the others find the modules that are waited for, and sees them executed.

    Loaders, specs and modules stay what they are. Asking for a spec, as programs do to learn what is installed, is no
    import.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[ModuleType], None]] = {}

    def call(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """Have ``callback`` called once with the module ``name``; at once if it is imported already."""
        self._waiting[name] = callback
        if (present := sys.modules.get(name)) is not None:
            self._imported(present, name)

    def install(self) -> None:
        """Wait, before all other finders."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait no longer."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find; the loader of a module that is waited for tells when it is done."""
        if name not in self._waiting:
            return None
        for finder in tuple(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec.loader, name)
                return spec
        return None

    def _follow(self, loader: Any, name: str) -> None:  # noqa: ANN401 (any loader there is)
        # Built-in loaders are classes, which all modules share; what is waited for is none of theirs.
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ == name:
                vars(loader).pop("exec_module", None)
            execute(module)
            if module.__name__ == name:
                self._imported(module, name)

        # On the object: its type, by which others recognise it, stays.
        if hasattr(loader, "__dict__"):
            vars(loader)["exec_module"] = exec_module

    def _imported(self, module: ModuleType, name: str) -> None:
        callback = self._waiting.pop(name, None)
        if callback is None:
            return
        from floatscope._guard import Guard

        with Guard(f"attaching to {name}"):
            callback(module)
