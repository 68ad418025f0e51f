"""A store in whose transactions something comes before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TypeVar

from sqlmodel import Session

from floatscope_server.store import Store

__all__ = ["Interposed"]

_T = TypeVar("_T")


class Interposed:
    """A store whose ``job``-th transaction something comes before."""

    def __init__(self, store: Store, job: int, before: Callable[[], object]) -> None:
        self.jobs = 0
        self._store = store
        self._job = job
        self._before = before

    def write(self, fn: Callable[[Session], _T]) -> _T:
        self.jobs += 1
        if self.jobs == self._job:
            self._before()
        return self._store.write(fn)

    def read(self) -> AbstractContextManager[Session]:
        return self._store.read()

    def settle(self) -> None:
        self._store.settle()

    def now(self) -> datetime:
        return self._store.now()
