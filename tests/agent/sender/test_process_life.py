"""Fork, exit and a dead server: the process that trains never notices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
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
        signal.alarm(60)
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
import atexit, sys, threading, time
from floatscope import wire
from floatscope._conversation import Timing
from floatscope._record import StepRecord

patience_s = float(sys.argv[2])
waits = []
join = threading.Thread.join
def note(thread, timeout=None):
    if threading.current_thread() is threading.main_thread():
        waits.append(timeout)
    join(thread, timeout)

threading.Thread.join = note
# Registered before the sender's, it is called after it.
atexit.register(lambda: print(*waits))

from floatscope._sender import Limits, Sender

class Record:
    nbytes = 100
    layers = ()
    def __init__(self, step): self.step = step
    def ready(self): return True
    def resolve(self): return StepRecord(step=self.step, scalars={"loss": 1.0}, summaries=())

sender = Sender(
    wire.Identity(run="r", writer="0" * 32),
    sys.argv[1],
    limits=Limits(flush_s=patience_s),
    timing=Timing(open_s=patience_s),
)
for step in range(1000):
    sender.put(Record(step))
"""


def _run(url: str, then: str, *, patience_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """What it says is how long it was ready to wait for each thread at its end."""
    command = [sys.executable, "-c", textwrap.dedent(_SCRIPT) + then, url, str(patience_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kind", ["refused", "blackholed"])
def test_exit_with_a_dead_server(kind: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if kind == "refused":
        listener.close()
    # What is tried first may be tried late, on a busy machine.
    tried = "while not sender._link.trouble: time.sleep(0.01)\n" if kind == "refused" else ""
    done = _run(url, tried + "sys.exit(7)", patience_s=Limits().flush_s)
    listener.close()
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    waits = [float(wait) for wait in done.stdout.split()]
    assert len(waits) == 2, "its two threads"
    assert max(waits) <= Limits().flush_s
    # The attempt on the black hole may outlast the process.
    assert done.stderr.count("cannot reach a Floatscope server") in ((1,) if kind == "refused" else (0, 1))
    assert "1000 records could not be delivered" in done.stderr


def test_exit_without_close_still_delivers(server: IngestDouble, until: Until) -> None:
    done = _run(server.url, "")
    assert (done.returncode, done.stderr) == (0, f"floatscope: run r at {server.url}/#/run/r\n")
    assert server.steps() == list(range(1000))
    until(lambda: isinstance(server.seen[-1], wire.Bye))


def test_a_crash_keeps_its_exit_code_and_its_only_traceback(server: IngestDouble) -> None:
    done = _run(server.url, "raise KeyError('theirs')")
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
