"""What is said of the machine goes with the run, from the sending thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from floatscope import wire
from floatscope._guard import Guard
from floatscope._sender import Sender
from floatscope._spool._spooler import SpoolPlace

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble

VERDICT = {"item": "masks", "status": "warning", "value": "1", "why": "because", "fix": "unset one"}


def hellos(server: IngestDouble) -> list[wire.Hello]:
    return [message for message in server.seen if isinstance(message, wire.Hello)]


def test_verdicts_are_part_of_the_configuration(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, until: Callable[..., None]
) -> None:
    threads = []

    def judge() -> list[dict[str, str]]:
        threads.append(threading.current_thread().name)
        return [VERDICT]

    sender = spooling(server.url, place, config={"batch": 8}, judge=judge)
    until(lambda: hellos(server))
    assert hellos(server)[0].config == {"batch": 8, "doctor": [VERDICT], "host": socket.gethostname()}
    assert threads == ["floatscope-send"]
    assert sender.stats().failure is None


def test_a_judge_that_fails_stops_nothing(
    server: IngestDouble,
    spooling: Callable[..., Sender],
    place: SpoolPlace,
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Guard, "reraise", False)

    def judge() -> list[dict[str, str]]:
        raise OSError("the kernel's files are gone")

    spooling(server.url, place, config={"batch": 8}, judge=judge)
    until(lambda: hellos(server))
    assert hellos(server)[0].config == {"batch": 8}
