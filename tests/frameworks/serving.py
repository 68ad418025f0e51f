"""A real server as a process of its own, and what ``floatscope show --json`` says of its runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Server"]


class Server:
    """``floatscope server`` on a port of its own."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "floatscope", "server", "--port", "0", "--data", str(data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline() if self.process.stdout is not None else ""
        self.url = said.strip().rpartition(" ")[2]
        assert self.url.startswith("http://127.0.0.1:"), said

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate(timeout=60)

    def show(self, run: str) -> dict[str, Any]:
        """What ``floatscope show RUN --json`` prints."""
        command = [sys.executable, "-m", "floatscope", "show", run, "--json", "--server", self.url]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        answer: dict[str, Any] = json.loads(shown.stdout)
        return answer

    def runs(self) -> list[str]:
        """The names of those that there are."""
        with urllib.request.urlopen(f"{self.url}/api/v1/runs", timeout=60) as answer:
            return [run["name"] for run in json.load(answer)]

    @contextmanager
    def following(self, log: Path, run: str) -> Iterator[None]:
        """``floatscope follow LOG`` meanwhile, from before there is a log."""
        command = [sys.executable, "-m", "floatscope", "follow", str(log), "--run", run, "--server", self.url]
        with subprocess.Popen(command) as follower:
            try:
                yield
            finally:
                follower.terminate()
                follower.wait(60)

    def until(self, arrived: Callable[[], bool]) -> None:
        """Wait until that is so; what the server does not know yet is not."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.HTTPError, ValueError):
                if arrived():
                    return
            time.sleep(0.2)
        raise AssertionError("it did not arrive")

    def scalar(self, run: str, name: str) -> dict[int, float]:
        """By step."""
        with urllib.request.urlopen(f"{self.url}/api/v1/runs/{run}/scalars?names={name}", timeout=60) as answer:
            [series] = json.load(answer)
        return dict(zip(series["steps"], series["values"], strict=True))
