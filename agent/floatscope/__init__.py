"""Live numeric-health telemetry for mixed-precision training.

Names are loaded on first use: importing floatscope imports neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope._alert import Alert
    from floatscope._client._client import Client
    from floatscope._client._errors import ClientError
    from floatscope._config import Config
    from floatscope._formats import formats
    from floatscope._operands import Operand
    from floatscope._scope import Scope, watch
    from floatscope._stats import summarize
    from floatscope._summary import Summary

__all__ = ["Alert", "Client", "ClientError", "Config", "Operand", "Scope", "Summary", "formats", "summarize", "watch"]

__version__ = "0.1.0"

_HOMES = {
    "Alert": "_alert",
    "Client": "_client._client",
    "ClientError": "_client._errors",
    "Config": "_config",
    "Operand": "_operands",
    "Scope": "_scope",
    "Summary": "_summary",
    "formats": "_formats",
    "summarize": "_stats",
    "watch": "_scope",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (each name has its own type)
    if name not in _HOMES:
        raise AttributeError(f"module 'floatscope' has no attribute {name!r}")
    value = getattr(import_module(f"floatscope.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
