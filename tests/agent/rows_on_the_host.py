"""Ways to have the rows of the host treated as those of a card: transferred through a ring, and measured in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from floatscope._backend import Backend
from floatscope._device_rows import Route
from floatscope._ring import Ring
from floatscope._stats import Plan, Reference, Rows, Variant
from floatscope._streams import Streams


class Event:
    """An event that happens when the test says so."""

    def __init__(self, *, happened: bool) -> None:
        self.happened = happened
        self.waited = False

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.waited = True


class OneStream:
    """The streams of a device that has one. Its events happen when ``arrive`` is called, or at once."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.events: list[Event] = []

    def current(self) -> object:
        return "the only one"

    def on(self, stream: object) -> object:
        raise AssertionError(f"there is no other stream, and this is {stream}")

    def enter(self) -> None:
        pass

    def join(self) -> None:
        pass

    def cleared(self) -> Event:
        self.events.append(Event(happened=self.at_once))
        return self.events[-1]

    def arrive(self) -> None:
        for event in self.events:
            event.happened = True


def on_the_host(words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int64)


def like_a_card(
    *,
    variant: Callable[[torch.device], Variant] = lambda _: Reference(),
    ring: Ring | None = None,
    streams: OneStream | None = None,
    batch_bytes: int = 1 << 30,
    row_elements: int = 1 << 32,
) -> Backend:
    """Batched, and through ``ring`` (one of 8 MB without)."""

    def route(device: torch.device) -> Route:
        def make(rows: int) -> Ring:
            return ring or Ring(8 << 20, reserve=1 << 10, allocate=on_the_host)

        return Route(make, cast("Streams", streams or OneStream()))

    return Backend(
        variant=variant,
        batched=lambda device: device.type == "cpu",
        route=route,
        row_elements=row_elements,
        batch_bytes=lambda _: batch_bytes,
    )


class Runs(Reference):
    """The reference, which tells how many tensors each run of a plan measured, and counts those measured alone."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.plans = 0
        self.alone = 0

    def plan(self, at: Sequence[int]) -> Plan:
        self.plans += 1
        return _Counted(self, super().plan(at))

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        self.alone += 1
        super().measure(tensor, words, hist)


class _Counted:
    def __init__(self, variant: Runs, plan: Plan) -> None:
        self._variant, self._plan = variant, plan

    def run(self, rows: Rows, tensors: Sequence[torch.Tensor], *, histogram: bool) -> None:
        before = self._variant.alone
        self._plan.run(rows, tensors, histogram=histogram)
        self._variant.alone = before
        self._variant.runs.append(len(tensors))
