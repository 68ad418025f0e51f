"""One real demo, shared by the tests that watch it, read its output and question its folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import pytest

SECONDS = 45
"""Long enough on two cores for the training to break; the demo's own end, not a limit of these tests."""


@dataclass(slots=True)
class Demo:
    """A running ``floatscope demo``. ``lines`` grows as it prints."""

    process: subprocess.Popen[str]
    data: Path
    url: str
    lines: list[str] = field(default_factory=list)

    def collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def begun(self) -> None:
        """Waits until its run is there: a page that asks for it before is answered 404, which the console shows."""
        end = time.monotonic() + 60
        while True:
            with urllib.request.urlopen(f"{self.url}/api/v1/runs", timeout=60) as answer:
                if any(run["name"] == "demo" and run["steps"] for run in json.load(answer)):
                    return
            assert time.monotonic() < end, self.lines
            time.sleep(0.05)

    def finish(self) -> int:
        """Its exit status, once it has ended by itself."""
        return self.process.wait(SECONDS + 60)


@contextmanager
def _running(data: Path, seconds: int) -> Iterator[Demo]:
    command = [sys.executable, "-m", "floatscope", "demo", "--no-browser", "--port", "0"]
    command += ["--seconds", str(seconds), "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        if address is None:
            process.terminate()
        assert address is not None
        demo = Demo(process, data, address[0])
        reader = Thread(target=demo.collect)
        reader.start()
        try:
            yield demo
        finally:
            process.terminate()
            reader.join()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo of this session; tests that come first see it running."""
    with _running(tmp_path_factory.mktemp("demo") / "data", SECONDS) as demo:
        yield demo
