"""However a training ends, the process that read the cards for it ends too, and meanwhile it holds nobody."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope._devices._sidecar import Sidecar
from tests.agent.devices.machine import as_sys
from tests.agent.devices.processes import alive, sidecars_of, state
from tests.frameworks.serving import Server

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys

    Until = Callable[..., None]

# What a training does, without torch: the sidecar belongs to a thread, as the agent's packing thread starts it. The
# program says its process id.
TRAINER = """
import os, signal, sys, threading, time
from pathlib import Path
from floatscope._devices._sidecar import Sidecar
sidecar = Sidecar(sysfs=Path(sys.argv[1]), period_s=0.002)
reads = threading.Event()
say = os.dup(1)
os.close(1)

def tell(*what):
    os.write(say, (" ".join(map(str, what)) + "\\n").encode())

def read():
    sidecar.start()
    while sidecar.reason is None:
        if sidecar.poll():
            reads.set()
        time.sleep(0.01)

def begin(until=lambda: reads.is_set()):
    threading.Thread(target=read, daemon=True).start()
    while not until():
        time.sleep(0.001)

def started():
    return sidecar.pid is not None

def fork(forget=True):
    if (child := os.fork()) == 0 and forget:
        sidecar.forget()
    return child

def daemonize():
    if fork():
        os._exit(0)
    os.setsid()
    if fork():
        os._exit(0)

def wait():
    tell(os.getpid())
    while True:
        time.sleep(60)

"""
WAYS = {
    "alone": "begin(); wait()",
    "as_a_daemon": "daemonize(); begin(); wait()",
    # A child that C forked, which runs no hooks of Python, has the ends of its pipes.
    "with_a_child_that_has_its_pipes": "begin(); fork(forget=False) or time.sleep(600); wait()",
}


class Trainer:
    """One that runs; ``pid`` is the process that trains, whoever started it."""

    def __init__(self, tree: Path, body: str, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER + body, str(tree)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"ROCM_PATH": "/nonexistent"} | environment,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def close(self) -> None:
        for group in {self.process.pid, self.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(group) if alive(group) else group, signal.SIGKILL)
        self.process.communicate(timeout=60)


@pytest.fixture
def trainer(fake_sys: FakeSys) -> Iterator[Callable[..., Trainer]]:
    fake_sys.card(0, "0000:05:00.0")
    started: list[Trainer] = []

    def start(body: str, **environment: str) -> Trainer:
        started.append(Trainer(fake_sys.root, body, environment))
        return started[-1]

    yield start
    for each in started:
        each.close()


def full(reader: int) -> bool:
    """Whether there is no room left for what that sidecar writes."""
    for file in Path(f"/proc/{reader}/fd").iterdir():
        if int(file.name) > 2 and str(file.readlink()).startswith("pipe:"):
            pipe = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
            room = select.select([], [pipe], [], 0)[1]
            os.close(pipe)
            return not room
    return False


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_training_that_is_killed(trainer: Callable[..., Trainer], until: Until, way: str, stopped: bool) -> None:
    training = trainer(WAYS[way])
    [reader] = sidecars_of(training.pid)
    if stopped:
        os.kill(training.pid, signal.SIGSTOP)
        until(lambda: state(training.pid) == "T")
        until(lambda: full(reader))
    os.kill(training.pid, signal.SIGKILL)
    until(lambda: not alive(reader))
    assert sidecars_of(training.pid) == []


def test_a_training_that_is_terminated(trainer: Callable[..., Trainer], until: Until) -> None:
    training = trainer(WAYS["alone"])
    os.kill(training.pid, signal.SIGTERM)
    until(lambda: not sidecars_of(training.pid))


def test_a_training_that_becomes_a_daemon_later(trainer: Callable[..., Trainer], until: Until) -> None:
    body = "before = os.getpid(); begin(); daemonize(); tell(before); wait()"
    training = trainer(body)
    before = training.pid
    assert training.process.stdout is not None
    training.pid = int(training.process.stdout.readline())
    until(lambda: not sidecars_of(before))
    assert alive(training.pid)
    assert sidecars_of(training.pid) == []


def test_a_training_that_is_killed_while_the_sidecar_starts(trainer: Callable[..., Trainer], until: Until) -> None:
    """Its parent is another process by then, and the child has the pipe that would tell."""
    body = "begin(started); tell(os.getpid()); os.kill(os.getpid(), 9) if fork(forget=False) else time.sleep(600)"
    training = trainer(body)
    until(lambda: not alive(training.pid))
    until(lambda: not sidecars_of(training.pid))


def hang(file: Path) -> None:
    """Whoever opens it waits until somebody writes."""
    new = file.with_suffix(".new")
    os.mkfifo(new)
    new.rename(file)


def hangs(file: Path) -> bool:
    """Whether somebody waits there."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_a_training_that_is_killed_while_a_driver_hangs(
    trainer: Callable[..., Trainer], fake_sys: FakeSys, until: Until
) -> None:
    training = trainer(WAYS["alone"])
    [reader] = sidecars_of(training.pid)
    file = next(fake_sys.root.glob("devices/*/*/mem_info_vram_used"))
    hang(file)
    until(lambda: hangs(file))
    os.kill(training.pid, signal.SIGKILL)
    until(lambda: not alive(reader))


def test_a_training_that_is_killed_while_a_library_hangs(
    trainer: Callable[..., Trainer], fake_sys: FakeSys, rocm_path: Path, tmp_path: Path, until: Until
) -> None:
    fake_sys.driver_is_live()
    cards = tmp_path / "cards"
    cards.write_text("0 5 0 0  1 1  1 1  1 1  A\n")
    hanging = {"ROCM_PATH": str(rocm_path), "FAKE_SMI_CARDS": str(cards), "FAKE_SMI_HANG": "1"}
    training = trainer("begin(started); wait()", **hanging)
    [reader] = sidecars_of(training.pid)
    until(lambda: b"libamd_smi.so" in Path(f"/proc/{reader}/maps").read_bytes())
    os.kill(training.pid, signal.SIGKILL)
    until(lambda: not alive(reader))


def test_a_sidecar_that_is_stopped_holds_nobody(fake_sys: FakeSys, until: Until) -> None:
    fake_sys.card(0, "0000:05:00.0")
    sidecar = Sidecar(sysfs=fake_sys.root, period_s=0.02)
    sidecar.start()
    until(sidecar.poll)
    reader = sidecar.pid
    assert reader is not None
    os.kill(reader, signal.SIGSTOP)
    until(lambda: state(reader) == "T")
    until(lambda: not sidecar.poll())  # what was in the pipe
    assert [sidecar.poll() for _ in range(100)] == [()] * 100
    sidecar.close()
    assert not alive(reader)


STEPS = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1_000_000):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    Path(sys.argv[1]).write_text(str(step))
    time.sleep(0.005)
"""


def test_floatscope_run(fake_sys: FakeSys, tmp_path: Path) -> None:
    """A training goes on while the driver hangs; when it is killed then nothing is left but readings in the spool."""
    device = fake_sys.card(0, "0000:05:00.0")
    script, steps = tmp_path / "train.py", tmp_path / "steps"
    script.write_text(STEPS)
    run = [sys.executable, "-m", "floatscope", "run", "--server", "http://127.0.0.1:1", "--name", "killed"]
    environment = {**os.environ, "ROCM_PATH": "/nonexistent", "OMP_NUM_THREADS": "1"}
    command = as_sys(fake_sys.root, [*run, "--", sys.executable, str(script), str(steps)])

    def wait_for(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert training.poll() is None, "the training has ended"
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.01)

    def step() -> int:
        return int(steps.read_text() or 0) if steps.exists() else -1

    def spooled() -> bool:
        files = Path(os.environ["FLOATSCOPE_DIR"]).glob("*/*.spool")
        return any(b"0000:05:00.0" in file.read_bytes() for file in files)

    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as training:
        try:
            wait_for(spooled)
            [reader] = sidecars_of(training.pid)
            hang(device / "mem_info_vram_used")
            wait_for(lambda: hangs(device / "mem_info_vram_used"))
            hung = step()
            wait_for(lambda: step() >= hung + 20)
            assert sidecars_of(training.pid) == [reader]
        finally:
            training.kill()
    deadline = time.monotonic() + 60
    while alive(reader):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert sidecars_of(training.pid) == []

    server = Server(tmp_path / "data")
    try:
        subprocess.run([sys.executable, "-m", "floatscope", "sync", "--server", server.url], check=True)
        [card] = server.show("killed")["devices"]
    finally:
        server.stop()
    assert (card["backend"], card["pci"], card["name"]) == ("sysfs", "0000:05:00.0", "AMD Instinct MI300X OAM")
