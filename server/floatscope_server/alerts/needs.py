"""What the engine and the outbox need of the rest of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sqlmodel import Session

from floatscope_server.observation import Observation

__all__ = ["Live", "Store"]

_T = TypeVar("_T")


class Store(Protocol):
    """The store."""

    def write(self, fn: Callable[[Session], _T]) -> _T: ...
    def read(self) -> AbstractContextManager[Session]: ...
    def replay(self, run_id: int, attempt: int, *, last_steps: int) -> Iterator[Observation]: ...


class Live(Protocol):
    """The live fan-out."""

    def publish(self, run: str, message: dict[str, Any]) -> None: ...
