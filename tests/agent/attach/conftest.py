"""A process that waits for trainings, as under ``floatscope run``, with its records in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import nn

import floatscope
from floatscope import Scope
from floatscope._attach import declared
from floatscope._attach.discovery import Discovery
from floatscope._memory import MemorySink


class Found:
    """The scopes that were made, each with its records, in order."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.sinks: list[MemorySink] = []

    def watch(self, model: nn.Module, **options: Any) -> Scope:  # noqa: ANN401 (those of ``floatscope.watch``)
        sink = MemorySink()
        scope = floatscope.watch(model, overhead_budget=0.0, _sink=sink, **options)
        self.scopes.append(scope)
        self.sinks.append(sink)
        return scope

    @property
    def sink(self) -> MemorySink:
        (sink,) = self.sinks
        return sink

    @property
    def losses(self) -> list[float | None]:
        return self.sink.scalar("loss")


@contextmanager
def waiting() -> Iterator[Found]:
    """Attach to whatever trains meanwhile."""
    found = Found()
    discovery = Discovery(found.watch)
    discovery.install()
    try:
        yield found
    finally:
        discovery.remove()
        for scope in found.scopes:
            scope.close()
        # Hooks of models that are gone stay until somebody attaches.
        other = nn.Linear(1, 1)
        floatscope.watch(other, _sink=MemorySink()).close()
        declared.forget()


@pytest.fixture
def found() -> Iterator[Found]:
    with waiting() as found:
        yield found
