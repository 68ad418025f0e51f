"""The demo's trainer as a program: it ends when it is told to, with and without a server."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from floatscope._demo import processes

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("limit", [["--steps", "2"], ["--seconds", "0.1"]])
def test_ends_by_itself_without_a_server(limit: list[str]) -> None:
    command = [sys.executable, "-m", "floatscope._demo.train", "--schedule", "sane", "--server", NOBODY, *limit]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "\nstep 0 " in f"\n{ended.stdout}"
    assert "Traceback" not in ended.stderr


def test_ends_on_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    trainer = processes.start(["-m", "floatscope._demo.train", "--server", NOBODY], log)
    try:
        assert processes.wait_for_line(trainer, log, "step 0 ", timeout_s=120) is not None
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(120) == 0
    finally:
        processes.stop([trainer])
    assert "Traceback" not in log.read_text()
