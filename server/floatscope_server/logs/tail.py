"""The bytes of what grows: a file that is rotated, truncated, replaced or not there yet, and standard input."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from floatscope_server.logs.source import LogError

__all__ = ["POLL_S", "Pace", "Tail", "piped"]

POLL_S = 0.5
"""Seconds between two looks at a file that does not grow."""
_CHUNK_BYTES = 1 << 16
_REMEMBERED = 256
"""Bytes before the present position that are held against the file: other ones there are another log's."""


class Pace:
    """When to look again, and whether to stop. ``idle`` is called when there is nothing to read for now."""

    def __init__(
        self,
        stopped: Callable[[], bool],
        idle: Callable[[], None],
        *,
        poll_s: float = POLL_S,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.stopped = stopped
        self.idle = idle
        self.poll_s = poll_s
        self._sleep = sleep

    def wait(self) -> bool:
        """Until it is time to look again; False if it is time to stop."""
        self.idle()
        if not self.stopped():
            self._sleep(self.poll_s)
        return not self.stopped()


class Tail:
    """Reads ``path`` for ever. What follows after a rotation or a truncation is the same log going on in another part:
    ``part`` is called before it, and a line that was not ended is."""

    def __init__(
        self, path: Path, pace: Pace, part: Callable[[], None], tell: Callable[[str], None] = lambda text: None
    ) -> None:
        """``tell`` hears why what is there after a rotation cannot be read, while that is waited for."""
        self._tell = tell
        self._path = path
        self._pace = pace
        self._part = part
        self._file = -1
        self._offset = 0
        self._before = b""
        self.rotations = 0
        self.truncations = 0

    def chunks(self) -> Iterator[bytes]:
        """Everything from the beginning on. Raises ``LogError`` for what is no file or may not be read; after a
        rotation that is waited for, since who rotates may set owner and mode later."""
        try:
            yield from self._chunks()
        except OSError as error:
            raise LogError(f"{self._path}: {error.strerror or error}") from error
        finally:
            self._close()

    def _chunks(self) -> Iterator[bytes]:
        while not self._open():
            if not self._pace.wait():
                return
        while True:
            yield from self._grown()
            if not self._pace.wait():
                yield from self._grown()
                return
            if self._shrunk():
                self.truncations += 1
                yield from self._begin_part()
                self._offset = 0
            elif self._replaced():
                # Whoever writes may not have noticed the rotation at once.
                yield from self._grown()
                self._close()
                if not self._reopened():
                    return
                self.rotations += 1
                yield from self._begin_part()

    def _reopened(self) -> bool:
        """Wait for another file under the name; False if somebody stopped before."""
        told = ""
        while True:
            try:
                if self._open():
                    return True
                why = ""
            except LogError as error:
                why = str(error)
                self._close()
            except OSError as error:
                why = f"{self._path}: {error.strerror or error}"
            if why and why != told:
                self._tell(f"{why}; waiting for a file")
                told = why
            if not self._pace.wait():
                return False

    def _grown(self) -> Iterator[bytes]:
        while chunk := os.pread(self._file, _CHUNK_BYTES, self._offset):
            self._offset += len(chunk)
            self._before = (self._before + chunk)[-_REMEMBERED:]
            yield chunk
            if self._pace.stopped():
                return

    def _begin_part(self) -> Iterator[bytes]:
        if self._before and not self._before.endswith(b"\n"):
            yield b"\n"
        self._before = b""
        self._part()

    def _shrunk(self) -> bool:
        """Whether the file was truncated, and perhaps has grown again."""
        size = os.fstat(self._file).st_size
        if size < self._offset:
            return True
        known = self._before
        return size > self._offset and os.pread(self._file, len(known), self._offset - len(known)) != known

    def _replaced(self) -> bool:
        try:
            there, mine = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False  # moved away, and nobody has made another one yet, or one that is out of reach
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _open(self) -> bool:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise LogError(f"{self._path}: no file; a pipe is followed by `floatscope follow - < {self._path}`")
        self._offset = 0
        return True

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def piped(source: int, target: int, pace: Pace) -> Iterator[bytes]:
    """What comes from the descriptor ``source``, after it was written to ``target`` as it is, until it ends. A target
    that nobody reads any more is left alone: the writer of ``source`` must not end because of it."""
    while not pace.stopped():
        if not select.select([source], [], [], pace.poll_s)[0]:
            pace.idle()
            continue
        chunk = os.read(source, _CHUNK_BYTES)
        if not chunk:
            return
        if target >= 0:
            rest = memoryview(chunk)
            try:
                while rest:
                    rest = rest[os.write(target, rest) :]
            except OSError:
                target = -1
        yield chunk


def signature(path: Path) -> tuple[int, ...] | None:
    """Changes whenever the file is written or replaced; None while there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None
