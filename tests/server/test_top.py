"""``floatscope top`` in a real pseudo-terminal, on a real server."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from floatscope import wire

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running
    from tests.server.programs import Command

pytestmark = pytest.mark.engines("sqlite")

WaitFor = Callable[[Callable[[], object], str], None]


class Screen:
    """The program in a terminal; ``lines`` are those of its newest frame."""

    def __init__(self, wait_for: WaitFor, *arguments: str, **environment: str) -> None:
        self.until = wait_for
        self._terminal, inner = pty.openpty()
        self.before = termios.tcgetattr(inner)
        self.resize(80, 24, tell=False)
        command = [sys.executable, "-m", "floatscope", "top", *arguments]
        self.process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "TERM": "xterm", **environment}
        )
        self._inner = inner
        self.text = ""
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        while data := self._read():
            self.text += data.decode()

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:
            return b""  # the other end is closed

    @property
    def lines(self) -> list[str]:
        frames = self.text.split("\x1b[H")[1:]
        whole = [frame for frame in frames if "\x1b[J" in frame]
        shown = whole[-1].partition("\x1b[J")[0] if whole else ""
        return [re.sub(r"\x1b\[[\d;]*[mK]", "", line) for line in shown.split("\r\n")]

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def resize(self, columns: int, rows: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def shows(self, *texts: str) -> None:
        def there() -> bool:
            return all(any(text in line for line in self.lines) for text in texts)

        self.until(there, f"{texts} on the screen")

    def end(self) -> int:
        """Exit status; the terminal is as it was."""
        status = self.process.wait(60)
        assert termios.tcgetattr(self._inner) == self.before
        assert self.text.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l") or self._left()
        return status

    def _left(self) -> bool:
        self.until(lambda: "\x1b[?1049l" in self.text, "the way back to the first screen")
        return True

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        os.close(self._inner)
        self._thread.join(60)
        os.close(self._terminal)


@pytest.fixture
def screen(wait_for: WaitFor) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def begin(*arguments: str, **environment: str) -> Screen:
        opened.append(Screen(wait_for, *arguments, **environment))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


def fill(agent: MakeAgent, make: Make) -> None:
    for run, top in (("训练", 16.0), ("second", 70000.0)):
        one = agent(run=run, layers=[make.layer(0, "blocks.0.mlp", ("grad", "fp16"))])
        one.deliver(
            wire.Body(
                first_step=0,
                steps=1,
                summaries=(make.summaries("grad", 0, [top]),),
                scalars=(make.scalars("loss", 0, [2.5]),),
            )
        )


def test_a_run_is_chosen_opened_and_left(
    server: Running, agent: MakeAgent, make: Make, screen: Callable[..., Screen]
) -> None:
    fill(agent, make)
    one = screen("--server", server.url)
    one.shows("训练", "second", "q quit")
    assert len(one.lines) == 24
    one.press("\x1b[B\r")
    one.shows("floatscope  训练", "loss 2.5", "blocks.0.mlp", "12.0  ")
    one.resize(120, 40)
    one.shows("OPEN ALERTS 0")
    one.until(lambda: len(one.lines) == 40, "the larger frame")
    one.press("\x1b")
    one.shows("LAYER", "second", "Enter open")
    one.press("k\r")
    one.shows("floatscope  second", "−0.10")
    assert "\x1b[31;1m" in one.text
    one.press("q")
    assert one.end() == 0


def test_a_server_that_is_gone_is_said_and_found_again(
    server: Running,
    agent: MakeAgent,
    make: Make,
    screen: Callable[..., Screen],
    command: Callable[..., Command],
) -> None:
    fill(agent, make)
    one = screen("second", "--server", server.url, NO_COLOR="1")
    one.shows("floatscope  second", "blocks.0.mlp")
    server.stop()
    one.shows("no link for", "blocks.0.mlp")
    port = server.address.rpartition(":")[2]
    command("server", "--port", port, "--data", str(server.services.settings.data)).address()
    one.until(lambda: server.url in one.lines[0], "the link")
    assert "\x1b[31;1m" not in one.text
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 143


def test_without_a_terminal_it_is_one_plain_frame(server: Running, agent: MakeAgent, make: Make) -> None:
    fill(agent, make)

    def top(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "floatscope", "top", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONUTF8": "1", **environment}
        )

    listed = top("--once", FLOATSCOPE_SERVER=server.url)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "训练" in listed.stdout
    assert "\x1b" not in listed.stdout
    opened = top("second", "--server", server.url, PYTHONUTF8="0", PYTHONIOENCODING="ascii", COLUMNS="60", LINES="12")
    assert opened.returncode == 0
    assert opened.stdout.isascii()
    assert max(map(len, opened.stdout.splitlines())) <= 60
    assert "-0.10" in opened.stdout
    unknown = top("third", "--server", server.url)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "there is no run 'third'" in unknown.stderr
    gone = top("--server", "http://127.0.0.1:1")
    assert gone.returncode == 2
    assert "cannot reach" in gone.stderr
    assert top("--server", "nonsense").returncode == 2
