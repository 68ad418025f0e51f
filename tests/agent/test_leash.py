"""A process on a leash: it ends as its command does, and its command ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from floatscope import _leash
from floatscope._devices._sidecar import Sidecar
from floatscope._leash import end, leashed

TRAINING = """
import os, signal
from floatscope._leash import leashed
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
leashed(["sh", "-c", "echo ready; exec sleep 600"])
signal.pause()
"""


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["sh", "-c", "echo done; exit 3"], 3, b"done\n"),
        (["sh", "-c", "kill -6 $$"], -6, b""),
        (["sh", "-c", "kill -9 $$"], -9, b""),
        (["no-such-compiler"], 127, b"no-such-compiler: No such file or directory\n"),
    ],
)
def test_it_ends_as_its_command_does(command: list[str], status: int, said: bytes) -> None:
    with leashed(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.communicate(timeout=120)[0] == said
    assert process.returncode == status


def test_a_parent_that_is_gone_already_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, _leash.__file__, "1", "touch", str(tmp_path / "made")]
    assert subprocess.run(command, check=False, timeout=120).returncode == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("alone", [True, False])
def test_its_command_ends_with_it(alone: bool) -> None:
    with leashed(["sh", "-c", "echo $$; exec sleep 600"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        if alone:
            os.kill(process.pid, signal.SIGKILL)
        else:
            end(process)
        # The pipe ends with the last process that holds it.
        assert process.stdout.read() == b""
    assert process.returncode == -9
    end(process)  # nothing is left to end


def test_it_goes_with_a_parent_that_has_sigterm_blocked() -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINING], stdout=subprocess.PIPE) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == b"ready\n"
        training.kill()
        # The pipe ends with the last process that holds it.
        assert training.stdout.read() == b""


def test_a_bundled_application_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(OSError, match="no Python to start"):
        leashed(["true"])
    sidecar = Sidecar()
    sidecar.start()
    assert sidecar.reason is not None
    assert "no Python to start" in sidecar.reason
    assert sidecar.pid is None


def test_nobody_watches_a_training_that_starts_in_it() -> None:
    with leashed(["sh", "-c", "echo $FLOATSCOPE_DISABLED"], stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=120)[0] == b"1\n"
