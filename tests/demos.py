"""A real ``floatscope demo`` that goes on until somebody has seen enough, however fast the machine is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

__all__ = ["Demo", "demonstrated"]

_DEADLINE_S = 200.0
_LIMIT_S = 600
"""After which it ends though nobody ended it."""
_STORY = (
    r"^time to first chart: ",
    r"^alert critical limit_crossed run=demo ",
    r"^alert critical nonfinite run=demo ",
    r"^webhook ",
)


@dataclass(slots=True)
class Demo:
    """A running demo. ``lines`` grows as it prints."""

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
        self._wait(lambda: "demo" in self._trained())

    def finish(self) -> int:
        """Ends it as Ctrl-C does, once both of its runs are there and it has told the story; its exit status."""
        if self.process.poll() is None:
            self._wait(self._told)
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(_DEADLINE_S)

    def _told(self) -> bool:
        text = "\n".join(self.lines)
        if not all(re.search(line, text, re.MULTILINE) for line in _STORY):
            return False
        return {"demo", "demo-sane"} <= self._trained() and bool(self._ask("/runs/demo")["skipped_steps"])

    def _trained(self) -> set[str]:
        """Runs with steps."""
        return {run["name"] for run in self._ask("/runs") if run["steps"]}

    def _ask(self, path: str) -> Any:  # noqa: ANN401 - JSON
        with urllib.request.urlopen(f"{self.url}/api/v1{path}", timeout=60) as answer:
            return json.load(answer)

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _DEADLINE_S
        while not condition():
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < end, self.lines
            time.sleep(0.05)


@contextmanager
def demonstrated(data: Path) -> Iterator[Demo]:
    """A demo that keeps its runs in the folder ``data``."""
    command = [sys.executable, "-m", "floatscope", "demo", "--no-browser", "--port", "0"]
    command += ["--seconds", str(_LIMIT_S), "--data", str(data)]
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
