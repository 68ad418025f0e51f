"""What an attached Python process begins with: it waits for torch, and for frameworks, to be imported.

Imported by ``floatscope.pth`` or by the ``sitecustomize`` that ``floatscope run`` puts in the way, whichever comes
first, before any code of the program.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from floatscope._attach.frameworks import FRAMEWORKS
from floatscope._attach.imports import AfterImport

__all__ = ["imports"]

_OWN = {
    "torch": "loops",
    "safetensors.torch": "checkpoints",
    "torch.distributed.checkpoint": "checkpoints",
}
"""Dotted name of the module whose import is waited for -> name of the module beside this one."""


imports = AfterImport()
"""What this process waits for."""


def _wait(name: str, home: str) -> None:
    def on_import(module: ModuleType) -> None:
        import_module(home).on_import(module)

    imports.call(name, on_import)


if os.environ.get("FLOATSCOPE_ATTACH") == "1" and os.environ.get("FLOATSCOPE_DISABLED", "") in ("", "0"):
    imports.install()
    for name, home in _OWN.items():
        _wait(name, f"floatscope._attach.{home}")
    for name, home in FRAMEWORKS.items():
        _wait(name, f"floatscope._attach.frameworks.{home}")
