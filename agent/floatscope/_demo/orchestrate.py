"""Runs the demo: a server, a webhook receiver and two trainings, and tells what happens to them."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from floatscope._demo import processes
from floatscope._demo.api import Api, ApiError
from floatscope._demo.receiver import Receiver, Webhook
from floatscope._demo.story import Story

__all__ = ["DemoError", "Plan", "run"]

LISTENING = "floatscope listening on "

_START_S = 60.0
_POLL_S = 0.5
_LAST_WEBHOOKS_S = 5.0
_TRAINING_STEPS = 1000
"""Some five minutes: a demo that is left alone stops using the machine."""


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to start, each as arguments to Python, and for how long to serve (``seconds``, None: until a signal)."""

    data: Path
    port: int
    seconds: float | None
    server: Sequence[str]
    trainings: Mapping[str, Sequence[str]]
    """Run name to command, to which ``--server ADDRESS`` is added."""

    @classmethod
    def standard(cls, *, data: Path, port: int, seconds: float | None) -> Plan:
        serve = ["-m", "floatscope", "server", "--port", str(port), "--data", str(data)]
        train = ["-m", "floatscope._demo.train", "--steps", str(_TRAINING_STEPS)]
        return cls(
            data=data,
            port=port,
            seconds=seconds,
            server=[*serve, "--webhook-allow", "127.0.0.1/32"],
            trainings={
                "demo": [*train, "--run", "demo", "--schedule", "hot"],
                "demo-sane": [*train, "--run", "demo-sane", "--schedule", "sane"],
            },
        )


def run(plan: Plan, say: Callable[[str], None], on_address: Callable[[str], None]) -> None:
    """Run the demo to its end; ``say`` prints a line, ``on_address`` gets the server's address once it listens.

    Everything that was started has ended when this returns or raises ``DemoError``. Call it from the main thread.
    """
    with ExitStack() as cleanup, _stop_signals() as stopped:
        address = _start_server(plan, cleanup)
        deadline = None if plan.seconds is None else time.monotonic() + plan.seconds
        on_address(address)
        api = Api(address)
        receiver = Receiver()
        receiver.start()
        cleanup.callback(receiver.stop)
        api.post("/api/v1/endpoints", {"url": receiver.url, "secret": receiver.secret, "min_severity": "info"})
        trainings: dict[str, subprocess.Popen[bytes]] = {}
        cleanup.callback(lambda: processes.stop(trainings.values()))
        for name, command in plan.trainings.items():
            trainings[name] = processes.start([*command, "--server", address], plan.data / f"{name}.log")

        story = Story(api, say, started=_process_start())
        server_log = plan.data / "server.log"
        while not stopped() and (deadline is None or time.monotonic() < deadline):
            _tell_webhooks(receiver, story, for_s=_POLL_S)
            try:
                story.poll()
            except ApiError as error:
                raise DemoError(f"the server stopped answering: {error}; its output is in {server_log}") from error
            for name in [name for name, process in trainings.items() if process.poll() is not None]:
                _require_success(name, trainings.pop(name), plan.data)
                say(f"training {name} has ended")

        processes.stop(trainings.values())
        trainings.clear()
        story.poll()
        limit = time.monotonic() + _LAST_WEBHOOKS_S
        while story.undelivered and time.monotonic() < limit:
            _tell_webhooks(receiver, story, for_s=_POLL_S)
        story.summary(tuple(plan.trainings))


def _start_server(plan: Plan, cleanup: ExitStack) -> str:
    log = plan.data / "server.log"
    server = processes.start(plan.server, log)
    cleanup.callback(lambda: processes.stop([server]))
    address = processes.wait_for_line(server, log, LISTENING, timeout_s=_START_S)
    if address is None:
        raise DemoError(f"the server did not start: {_last_line(log) or 'it said nothing'}; its output is in {log}")
    return address


def _tell_webhooks(receiver: Receiver, story: Story, *, for_s: float) -> None:
    """Hand over what arrives in the next ``for_s`` seconds."""
    deadline = time.monotonic() + for_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            webhook: Webhook = receiver.received.get(timeout=left)
        except queue.Empty:
            return
        story.webhook(webhook)


def _require_success(name: str, process: subprocess.Popen[bytes], data: Path) -> None:
    if process.returncode != 0:
        log = data / f"{name}.log"
        last = _last_line(log) or f"status {process.returncode}"
        raise DemoError(f"the training {name} failed: {last}; its output is in {log}")


def _last_line(log: Path) -> str | None:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Within, SIGINT and SIGTERM only make the yielded function true."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _process_start() -> float:
    """When this process was started, on the clock of ``time.clock_gettime(time.CLOCK_BOOTTIME)``, in seconds."""
    # proc(5): field 22, in clock ticks; the program name in field 2 may hold spaces, so count from its closing bracket.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
