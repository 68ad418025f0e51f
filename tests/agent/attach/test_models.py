"""Looking for the model among all objects of the process leaves other threads alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from torch import nn

from floatscope._attach.models import roots_of


@pytest.fixture
def failures() -> Iterator[list[BaseException]]:
    """What a thread that makes tuples from iterators, with turns of other threads in between, has met."""
    errors: list[BaseException] = []
    begun, over = threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(100):
            time.sleep(0)
            yield number

    def make_tuples() -> None:
        while not over.is_set():
            try:
                tuple(numbers())
            except SystemError as error:
                errors.append(error)
            begun.set()

    thread = threading.Thread(target=make_tuples)
    thread.start()
    assert begun.wait(60)
    yield errors
    over.set()
    thread.join()


def test_a_tuple_that_another_thread_is_making_gets_finished(failures: list[BaseException]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    for _ in range(10):
        assert roots_of(model.parameters()) == [model]
    assert failures == []
