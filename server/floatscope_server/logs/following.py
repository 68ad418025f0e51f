"""A log that grows, into a run, for as long as somebody wants."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from floatscope import wire
from floatscope_server.logs.channel import Channel, Where
from floatscope_server.logs.importing import Items
from floatscope_server.logs.source import (
    LogError,
    chunks_of,
    ended_lines,
    event_files,
    framework_of,
    growing,
    is_compressed,
)
from floatscope_server.logs.stream import DivergedError, Progress, Stream, mark_of
from floatscope_server.logs.tail import Pace, Tail, signature
from floatscope_server.readers import HEAD_BYTES, LogFormat, detect
from floatscope_server.readers.catalogue import KNOWN
from floatscope_server.readers.console import CONSOLE
from floatscope_server.readers.tfevents import TENSORBOARD_EVENTS
from floatscope_server.readers.trainer_state import TRAINER_STATE

__all__ = ["Follower"]

_GENERATIONS = 64
_GOODBYE_S = 5.0


class Follower:
    """Sends what a log holds and what comes to it. ``tell`` takes lines for the user."""

    def __init__(
        self,
        where: Where,
        run: str,
        name: str,
        *,
        stopped: Callable[[], bool],
        tell: Callable[[str], None],
        poll_s: float,
    ) -> None:
        """``name``: the log's, the same wherever and whenever it is read."""
        self._where = where
        self._run = run
        self._name = name
        self._stopped = stopped
        self._tell = tell
        self._pace = Pace(stopped, self._idle, poll_s=poll_s)
        self._items: Items | None = None
        self._stream: Stream | None = None
        self._channels: list[Channel] = []
        self._generation = 0
        self.tail: Tail | None = None
        self.records = 0
        self.known = 0
        self.left = 0
        """Records that the server has not acknowledged."""

    @property
    def format(self) -> str:
        """What the log is, as far as it is known."""
        return "" if self._items is None else self._items.name

    @property
    def unread(self) -> int:
        """Lines that begin like records and could not be read."""
        return 0 if self._items is None else self._items.broken

    # Kinds of logs

    def file(self, path: Path) -> None:
        """Until somebody stops it. Raises ``LogError`` and ``ChannelError``."""
        with self._sending():
            self._file(path)

    def piped(self, chunks: Callable[[Pace], Iterator[bytes]]) -> None:
        """What ``chunks`` gives, which cannot be read again."""
        with self._sending():
            self._piped(chunks)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """What cannot go on stops sending too."""
        try:
            yield
        except BaseException:
            for channel in self._channels:
                channel.abandon()
            self._channels = []
            raise

    def _file(self, path: Path) -> None:
        told = False
        while not path.exists():
            if not told:
                self._tell(f"{path} is not there yet; waiting")
                told = True
            if not self._pace.wait():
                return
        if path.is_dir():
            self._again(lambda: self._folder(path))
            return
        if not path.is_file():
            raise LogError(f"{path}: no file; a pipe is followed by `floatscope follow - < {path}`")
        log_format = self._format_of(path)
        if log_format is None:
            return
        if log_format is TRAINER_STATE:
            self._whole(path)
        else:
            self._again(lambda: self._growing(path, log_format))

    def _piped(self, chunks: Callable[[Pace], Iterator[bytes]]) -> None:
        given = chunks(self._pace)
        head = b""
        for chunk in given:
            head += chunk
            log_format = _told_by(head)
            if log_format is None:
                continue
            stream = self._begin(log_format, resume=False)
            stream.past = False
            for item in self._found(_after(head, given)):
                stream.take(item)
            break
        self._end()

    def _again(self, read: Callable[[], None]) -> None:
        """Where the server has another log that begins alike, as one of its own."""
        while True:
            try:
                read()
            except DivergedError:
                self._abandon()
                self._generation += 1
                if self._generation == _GENERATIONS:
                    raise LogError(f"{self._name}: begins like {_GENERATIONS} others of this name") from None
            else:
                self._end()
                return

    def _growing(self, path: Path, log_format: LogFormat) -> None:
        stream = self._begin(log_format)
        self.tail = Tail(path, self._pace, stream.begin_part, self._tell)
        for item in self._found(ended_lines(log_format, self.tail.chunks())):
            stream.take(item)

    def _folder(self, folder: Path) -> None:
        """One event file after the other: a training writes to the newest."""
        stream = self._begin(TENSORBOARD_EVENTS)
        done: set[Path] = set()
        while not self._stopped():
            fresh = [path for path in event_files(folder) if path not in done]
            if not fresh:
                self._pace.wait()
                continue
            for path in fresh:
                if self._stopped():
                    break
                done.add(path)
                stream.begin_part()
                for item in self._found(Tail(path, self._until_newer(folder, done), stream.begin_part).chunks()):
                    stream.take(item)

    def _until_newer(self, folder: Path, done: set[Path]) -> Pace:
        """The pace of a file in ``folder`` that is over once there is another one and nothing came to it since."""
        idle = 0

        def over() -> bool:
            return self._stopped() or (idle > 1 and any(path not in done for path in event_files(folder)))

        def rest() -> None:
            nonlocal idle
            idle += 1
            self._idle()

        return Pace(over, rest, poll_s=self._pace.poll_s)

    def _whole(self, path: Path) -> None:
        """A file that is written anew at each save, with what was in it before and more."""
        marks = array("Q")
        before: tuple[int, ...] | None = None
        stream: Stream | None = None
        while not self._stopped():
            now = signature(path)
            if now is None or now == before:
                self._pace.wait()
                continue
            stream = self._version(path, marks, stream)
            before = now
            self._idle()
        self._end()

    def _version(self, path: Path, marks: array[int], stream: Stream | None) -> Stream | None:
        """Send what this version of the file has more than the one before, whose marks are in ``marks``."""
        items = self._items = Items(TRAINER_STATE)
        try:
            found = list(items.of(chunks_of(path)))
        except FileNotFoundError:
            return stream
        fresh = array("Q", map(mark_of, found))
        same = next(
            (i for i, (a, b) in enumerate(zip(fresh, marks, strict=False)) if a != b), min(len(fresh), len(marks))
        )
        if items.broken and same == len(fresh) < len(marks):
            return stream  # it is being written
        while True:
            if stream is None or same < len(marks):
                if stream is not None:
                    # The training went back to a checkpoint and on from there.
                    stream.supersede()
                    self._abandon()
                    self._generation += 1
                stream = self._begin(TRAINER_STATE)
                start = 0
            else:
                start = same
            try:
                for item in found[start:]:
                    stream.take(item)
            except DivergedError:
                self._abandon()
                self._generation += 1
                stream, same = None, 0
                continue
            marks[:] = fresh
            return stream

    # Their way

    def _format_of(self, path: Path) -> LogFormat | None:
        """The format of a file, once it holds enough to tell; None if somebody stopped before."""
        told = False
        size = -1
        while True:
            head = b""
            try:
                with path.open("rb") as file:
                    head = file.read(HEAD_BYTES)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise LogError(f"{path}: {error.strerror or error}") from error
            if is_compressed(head):
                raise LogError(f"{path}: compressed, so that nothing comes to it; use `floatscope import`")
            if len(head) != size and (found := _told_by(head)) is not None:
                return found
            size = len(head)
            if head and not told:
                self._tell(f"{path} holds no record of a known format yet; waiting. Known are {KNOWN}")
                told = True
            if not self._pace.wait():
                return None

    def _begin(self, log_format: LogFormat, *, resume: bool = True) -> Stream:
        self._items = Items(log_format)
        stream = self._stream = Stream(
            log_format,
            self._channel,
            key=f"{self._run}/{self._name}",
            alone=log_format.cards,
            generation=self._generation,
            now_ns=time.time_ns,
            resume=resume,
        )
        return stream

    def _found(self, chunks: Iterator[bytes]) -> Iterator[Any]:
        assert self._items is not None
        return self._items.of(chunks)

    def _channel(self, writer: str, attempt: int) -> Channel:
        for before in self._channels:
            before.leave()
        identity = wire.Identity(run=self._run, writer=writer, attempt=attempt, started_ns=time.time_ns())
        config = {"source": "follow", "file": self._name, "format": self.format}
        if framework := framework_of(self.format):
            config["framework"] = framework
        channel = Channel(self._where, identity, config, stopped=self._stopped, tell=self._tell)
        self._channels.append(channel)
        return channel

    def _idle(self) -> None:
        stream = self._stream
        if stream is None:
            return
        if self._channels:
            self._channels[-1].check()
        stream.pause()
        if stream.progress is not Progress.BEHIND:
            stream.past = False

    def _end(self) -> None:
        """Somebody stopped it, or it ended: send what is left, as far as the server takes it."""
        if self._stream is not None:
            self._stream.finish()
            self._note()
        for channel in self._channels:
            channel.close("closed", _GOODBYE_S)
            self.left += channel.waits()
        self._channels = []

    def _abandon(self) -> None:
        self._note()
        for channel in self._channels:
            channel.leave()
        self._stream = None

    def _note(self) -> None:
        if self._stream is not None:
            self.records += self._stream.counts.records
            self.known += self._stream.counts.skipped


def _told_by(head: bytes) -> LogFormat | None:
    """The format of a log that begins with ``head``; None while it may be anything."""
    if not head:
        return None
    found = growing(detect(head))
    if found is not CONSOLE or len(head) >= HEAD_BYTES:
        return found
    return CONSOLE if any(True for _ in CONSOLE.read(iter([head]))) else None


def _after(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest
