"""The terminal: keys one by one, another screen while it lasts, and everything as it was afterwards."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["Terminal", "terminal"]

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEYS = {
    **dict.fromkeys(("\x1b[A", "\x1bOA", "k"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB", "j"), "down"),
    **dict.fromkeys(("\r", "\n", "\x1b[C", "\x1bOC", "l"), "open"),
    **dict.fromkeys(("\x1b", "\x1b[D", "\x1bOD", "h", "\x7f", "\x08"), "back"),
    **dict.fromkeys(("q", "Q", "\x04"), "quit"),
    **dict.fromkeys(("\x1b[H", "\x1b[1~", "g"), "first"),
    **dict.fromkeys(("\x1b[F", "\x1b[4~", "G"), "last"),
}
_LONGEST = 4


class Terminal:
    """``wake`` may be called from any thread and from signal handlers."""

    def __init__(self, keys: int, pipe: tuple[int, int]) -> None:
        self._keys = keys
        self._read, self._write = pipe

    def wake(self) -> None:
        """Let ``wait`` return."""
        try:
            os.write(self._write, b"\0")
        except (BlockingIOError, OSError):
            return  # it is awake already, or over

    def wait(self) -> list[str]:
        """Keys that were pressed, none if it was woken; "quit" when the terminal is gone."""
        ready, _, _ = select.select([self._keys, self._read], [], [])
        if self._read in ready:
            os.read(self._read, 4096)
        if self._keys not in ready:
            return []
        data = os.read(self._keys, 1024)
        return list(_pressed(data.decode("utf-8", "replace"))) if data else ["quit"]

    def size(self) -> tuple[int, int]:
        """(columns, rows)."""
        size = os.terminal_size((80, 24))
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            size = shutil.get_terminal_size()
        return max(20, size.columns), max(5, size.lines)

    def show(self, lines: Sequence[str]) -> None:
        """Each line in its place; what was there goes."""
        sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()


def _pressed(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        length = next((n for n in range(_LONGEST, 0, -1) if text[at : at + n] in _KEYS), 0)
        if length:
            yield _KEYS[text[at : at + length]]
        at += length or 1


@contextmanager
def terminal() -> Iterator[Terminal]:
    """The terminal of this process; ends in order on SIGTERM and SIGHUP too."""
    keys = sys.stdin.fileno()
    pipe = os.pipe()
    for descriptor in pipe:
        os.set_blocking(descriptor, False)
    one = Terminal(keys, pipe)
    before = termios.tcgetattr(keys)

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: one.wake())
    try:
        tty.setcbreak(keys, termios.TCSANOW)
        sys.stdout.write(_ENTER)
        yield one
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(keys, termios.TCSANOW, before)
