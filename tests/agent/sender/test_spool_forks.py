"""A training that forks while it spools: the child is silent and lets go, the parent goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope._sender import Sender
from floatscope._spool._home import Folder
from floatscope._spool._spooler import SpoolPlace
from tests.agent.sender.spooling import WRITER, on_disk

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

    MakeStep = Callable[..., Pending]
    Until = Callable[..., None]

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_a_fork_lets_go_of_everything(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until
) -> None:
    server.stop()
    sender = spooling(server.url, place)
    sender.put(step(0))
    until(lambda: on_disk(sender, 1))
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        here = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
        sender.put(step(1))
        sender.close("child")
        os._exit(sum(str(place.directory) in target for target in here))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert Folder.adopt(place.directory / WRITER) is None, "the parent holds its lock"
    server.start()
    sender.close("finished")
    assert server.steps() == [0]


def forks(sender: Sender, count: int) -> None:
    """Fork while a thread of the parent holds each lock in turn; a child that hangs fails."""
    spooler = sender._spooler
    assert spooler is not None
    assert spooler._segments is not None
    locks = [sender._queue._lock, spooler.outbox._lock, spooler._segments._lock]
    for n in range(count):
        with locks[n % len(locks)]:  # type: ignore[attr-defined]
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                sender.stats()
                sender.close("child")
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_forks_while_locks_are_held(
    server: IngestDouble, spooling: Callable[..., Sender], place: SpoolPlace, step: MakeStep, until: Until, count: int
) -> None:
    sender = spooling(server.url, place)
    sender.put(step(0))
    until(lambda: sender.stats().acknowledged == 1 and sender._spooler and sender._spooler._segments)
    forks(sender, count)
    sender.put(step(1))
    sender.close("finished")
    assert server.steps() == [0, 1]
