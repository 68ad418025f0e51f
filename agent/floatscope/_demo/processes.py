"""Child processes of the demo: each writes to a log file, and none outlives the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["start", "stop", "wait_for_line"]

_POLL_S = 0.05


def start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start ``python ARGUMENTS...`` with its output in ``log``.

    Call it from the main thread: the child is killed when the thread that started it ends. The child has a session of
    its own, so that Ctrl-C reaches the demo alone, which then stops its children in order.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "floatscope._demo.tether", str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(os.environ, spool=log.parent / "spool"),
            start_new_session=True,
        )


def _environment(environ: Mapping[str, str], *, spool: Path) -> dict[str, str]:
    """The demo must not disable itself or send its runs to the user's own server; nor may it take what trainings of the
    user have left for a server at this address, or leave something of its own there."""
    kept = {name: value for name, value in environ.items() if not name.startswith("FLOATSCOPE_")}
    return kept | {"FLOATSCOPE_DIR": str(spool.absolute())}


def stop(processes: Iterable[subprocess.Popen[bytes]], *, grace_s: float = 10.0) -> None:
    """End ``processes``: SIGTERM to all, SIGKILL to those that are still there after ``grace_s`` seconds."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_line(process: subprocess.Popen[bytes], log: Path, prefix: str, *, timeout_s: float) -> str | None:
    """The rest of the first line of ``log`` that starts with ``prefix``; None when ``process`` ended without it."""
    deadline = time.monotonic() + timeout_s
    while True:
        ended = process.poll() is not None
        complete = log.read_text(errors="replace").splitlines(keepends=True)
        for line in complete:
            if line.startswith(prefix) and line.endswith("\n"):
                return line[len(prefix) :].strip()
        if ended or time.monotonic() >= deadline:
            return None
        time.sleep(_POLL_S)
