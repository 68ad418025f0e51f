"""The queue between the training thread and the packing thread, whose ``put`` takes no lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from floatscope import wire
from floatscope._queue import PendingQueue
from floatscope._record import StepRecord


@dataclass(frozen=True)
class Waiting:
    """A record of a size, whose numbers are there."""

    step: int
    nbytes: int = 10
    layers: tuple[wire.Layer, ...] = ()

    def ready(self) -> bool:
        return True

    def resolve(self) -> StepRecord:
        return StepRecord(step=self.step, scalars={}, summaries=())


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads take turns as often as they can, so that a race shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_full_queue_drops_the_oldest() -> None:
    queue = PendingQueue(max_records=3, max_bytes=1000)
    assert [queue.put(Waiting(step)) for step in range(5)] == [10, 20, 30, 30, 30]
    dropped = queue.take_dropped()
    assert dropped is not None
    assert (dropped.first, dropped.last, dropped.count) == (0, 1, 2)
    assert queue.take_dropped() is None
    assert queue.put(Waiting(5, nbytes=1000)) == 1000, "what is too large alone stays alone"
    assert (taken := queue.take()) is not None
    assert taken.step == 5
    assert queue.nbytes == len(queue) == 0


def test_what_is_thrown_away_is_counted() -> None:
    queue = PendingQueue(max_records=3, max_bytes=1000)
    for step in range(5):
        queue.put(Waiting(step))
    assert queue.clear() == 5
    assert queue.nbytes == len(queue) == 0
    assert queue.put(Waiting(5)) == 10


@pytest.mark.usefixtures("impatient_threads")
def test_nothing_is_lost_or_counted_twice_between_two_threads() -> None:
    steps = 20_000
    queue = PendingQueue(max_records=8, max_bytes=150)
    taken: list[int] = []
    dropped: list[tuple[int, int, int]] = []
    over = threading.Event()

    def consume() -> None:
        while True:
            last = over.is_set()
            if gone := queue.take_dropped():
                dropped.append((gone.first, gone.last, gone.count))
            if (record := queue.take()) is not None:
                taken.append(record.step)
            elif last:
                return

    consumer = threading.Thread(target=consume)
    consumer.start()
    for step in range(steps):
        waiting = queue.put(Waiting(step, nbytes=1 + step % 40))
        assert 0 <= waiting <= 150 + 40
    over.set()
    consumer.join()
    assert taken == sorted(set(taken))
    assert len(taken) + sum(count for _, _, count in dropped) == steps
    assert queue.nbytes == 0
