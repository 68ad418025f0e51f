"""Fork, exit and a dead server: the process that trains never notices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from floatscope import wire
from floatscope._sender import Limits, Sender

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble, Pending

    MakeSender = Callable[..., Sender]
    MakeStep = Callable[..., Pending]
    Until = Callable[..., None]

# The child ends at once after a few calls; CPython's general warning about forks with threads is not about us.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def _fork(child: Callable[[], None]) -> None:
    """Run ``child`` in a fork; fails when it raises or does not end."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            child()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_forked_children_are_inert_whatever_lock_is_held(
    server: IngestDouble, sender_to: MakeSender, step: MakeStep, until: Until
) -> None:
    sender = sender_to(server.url)
    until(lambda: sender.stats().connections)
    stop = threading.Event()

    def keep_locks_busy() -> None:
        while not stop.is_set():
            sender.stats()

    busy = threading.Thread(target=keep_locks_busy)
    busy.start()

    def child() -> None:
        sender.put(step(1_000_000))
        sender.close("child")
        assert sender.stats().acknowledged == 0

    for n in range(60):
        sender.put(step(n))
        _fork(child)
    stop.set()
    busy.join()
    sender.close("finished")
    assert server.steps() == list(range(60))
    assert [message for message in server.seen if isinstance(message, wire.Hello)] == server.seen[:1]


def test_fork_while_the_queue_lock_is_held(server: IngestDouble, sender_to: MakeSender, step: MakeStep) -> None:
    sender = sender_to(server.url)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with sender._queue._lock, sender._outbox._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def child() -> None:
        sender.put(step(1))
        sender.stats()
        sender.close("child")

    _fork(child)
    release.set()
    holder.join()


def test_child_does_not_keep_the_connection_open(server: IngestDouble, sender_to: MakeSender, until: Until) -> None:
    sender = sender_to(server.url)
    until(lambda: sender._link._connection and sender.stats().connections)
    connection = sender._link._connection
    assert connection is not None
    descriptor = connection.socket.fileno()

    def child() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    _fork(child)
    os.fstat(descriptor)


_SCRIPT = """
import sys
from floatscope import wire
from floatscope._record import StepRecord
from floatscope._sender import Sender

class Record:
    nbytes = 100
    layers = ()
    def __init__(self, step): self.step = step
    def ready(self): return True
    def resolve(self): return StepRecord(step=self.step, scalars={"loss": 1.0}, summaries=())

sender = Sender(wire.Identity(run="r", writer="0" * 32), sys.argv[1])
for step in range(1000):
    sender.put(Record(step))
"""


def _run(url: str, then: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT) + then, url], capture_output=True, text=True, timeout=60
    )
    return done, time.monotonic() - began


@pytest.mark.parametrize("kind", ["refused", "blackholed"])
def test_exit_with_a_dead_server(kind: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if kind == "refused":
        listener.close()
    done, seconds = _run(url, "sys.exit(7)")
    listener.close()
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    # 5 s for the flush; starting Python and importing take the rest.
    assert seconds < 5 + 10
    # The attempt on the black hole may outlast the process.
    assert done.stderr.count("cannot reach a Floatscope server") in ((1,) if kind == "refused" else (0, 1))
    assert "1000 records could not be delivered" in done.stderr


def test_exit_without_close_still_delivers(server: IngestDouble, until: Until) -> None:
    done, _ = _run(server.url, "")
    assert (done.returncode, done.stderr) == (0, f"floatscope: run r at {server.url}/#/run/r\n")
    assert server.steps() == list(range(1000))
    until(lambda: isinstance(server.seen[-1], wire.Bye))


def test_a_crash_keeps_its_exit_code_and_its_only_traceback(server: IngestDouble) -> None:
    done, _ = _run(server.url, "raise KeyError('theirs')")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert server.steps() == list(range(1000))


def test_put_goes_on_while_the_server_hangs(sender_to: MakeSender, step: MakeStep) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    sender = sender_to(url, limits=Limits(pending_records=10, outbox_records=10, flush_s=0.1))
    for n in range(2000):
        sender.put(step(n))
    sender.close("finished")
    stats = sender.stats()
    listener.close()
    assert stats.put == 2000
    assert stats.lost.keys() <= {"pending_full", "outbox_full"}
    assert stats.waiting <= 20 + 10
