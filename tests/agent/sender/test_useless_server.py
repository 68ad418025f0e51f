"""A server that can be reached and stores nothing is reported while there is time to act."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from floatscope import wire
from floatscope._conversation import Timing
from floatscope._link import one_line
from floatscope._sender import Sender

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

    MakeSender = Callable[..., Sender]
    MakeStep = Callable[..., Pending]
    Until = Callable[..., None]


def test_a_server_that_never_answers_a_batch(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.deaf = True
    sender = sender_to(server.url, timing=Timing(silence_s=0.1, poll_s=0.01, stall_s=0.3))
    sender.put(step(0))
    until(lambda: "has stored nothing" in caplog.text)
    until(lambda: sender.stats().connections > 3)
    assert caplog.text.count("has stored nothing") == 1
    assert "1 record waits, 0 are lost" in caplog.text
    server.deaf = False


def test_a_server_that_refuses_every_batch(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.judge = lambda batch: wire.Nack(seq=batch.seq, code="no", message="m", expected=batch.seq + 1)
    sender = sender_to(server.url, timing=Timing(poll_s=0.01, stall_s=0.3))
    numbers = iter(range(10**6))

    def told() -> bool:
        sender.put(step(next(numbers)))
        return "has stored nothing" in caplog.text

    until(told)
    server.judge = lambda batch: None


def test_a_server_that_never_welcomes(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    server.welcomes = False
    sender = sender_to(server.url, timing=Timing(open_s=0.2, poll_s=0.01))
    sender.put(step(0))
    until(lambda: "cannot reach a Floatscope server" in caplog.text)
    server.welcomes = True


@pytest.mark.parametrize("size", [-5, 0, 200])
def test_an_absurd_block_size_loses_nothing(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until, size: int
) -> None:
    server.max_block_bytes = size
    sender = sender_to(server.url)
    until(lambda: sender.stats().connections)
    for n in range(20):
        sender.put(step(n, rows=3))
    until(lambda: sender.stats().acknowledged == 20)
    assert sender.stats().lost == {}


def test_what_a_server_says_is_one_printable_line() -> None:
    assert one_line("no \x1b[31m\n\tway") == "no [31m way"
    assert one_line("x" * 10_000) == "x" * 297 + "..."
    assert len(one_line("ab\n" * 10_000)) <= 300
