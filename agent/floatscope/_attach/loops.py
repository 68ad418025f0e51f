"""Attaches to training loops: any program that makes an optimizer of torch and trains with it.

Until then the process has a few functions of torch wrapped, and nothing else: launchers, data loaders' workers and
programs that only use a model are never a run.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from floatscope._log import logger

if TYPE_CHECKING:
    from floatscope._attach.discovery import Discovery

__all__ = ["OLDEST_TORCH", "current", "on_import"]

OLDEST_TORCH = (2, 6)

_current: list[Discovery] = []


def current() -> Discovery | None:
    """What waits for trainings in this process; None where nothing does."""
    return _current[0] if _current else None


def on_import(torch: ModuleType) -> None:
    """Wait for a training."""
    if _version(torch) < OLDEST_TORCH:
        logger.warning(
            "torch %s is too old to be watched, which takes %d.%d or newer: this program runs without telemetry",
            torch.__version__,
            *OLDEST_TORCH,
        )
        return
    from floatscope._attach import checkpoints
    from floatscope._attach.discovery import Discovery

    checkpoints.follow(torch)
    _current[:] = [Discovery()]
    _current[0].install()


def _version(torch: Any) -> tuple[int, int]:  # noqa: ANN401 (the module)
    major, minor, *_ = (int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split("."))
    return major, minor
