"""The two threads that keep a sender's spool: one writes, tidies and makes room, the other makes it durable."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from floatscope._log import logger
from floatscope._spool._entries import buffers_of
from floatscope._spool._format import Kind, encoded
from floatscope._spool._home import About, Folder, Home
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._segments import Segments

__all__ = ["SpoolPlace", "Spooler"]

_WRITE_BYTES = 1 << 20
_WINDOW_BYTES = 4 << 20
_SYNC_EVERY_S = 1.0
_TIDY_EVERY_S = 1.0
_MOST_SEGMENT_BYTES = 8 << 20
_SEGMENTS_OF_CAP = 8

_REASONS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EROFS: "read_only",
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
    errno.EIO: "io_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolPlace:
    """Where spools are, and the most bytes that all of them may take together."""

    directory: Path
    max_bytes: int = 1 << 30

    @property
    def segment_bytes(self) -> int:
        """Size at which a segment is full."""
        return min(_MOST_SEGMENT_BYTES, max(1, self.max_bytes // _SEGMENTS_OF_CAP))


class Spooler:
    """Owns the folder of one writer and the ``outbox`` whose batches it keeps there.

    What goes wrong on the disk switches it off, with one warning; the outbox goes on in memory.
    """

    def __init__(
        self,
        place: SpoolPlace,
        about: About,
        *,
        max_records: int,
        max_bytes: int,
        on_leftovers: Callable[[list[Path]], None] = lambda paths: None,
    ) -> None:
        """``on_leftovers`` is called, in the writing thread, with the folders of other writers."""
        self.place = place
        self.off: str | None = None
        self.outbox = SpooledOutbox(
            max_records=max_records, max_bytes=max_bytes, window_bytes=_WINDOW_BYTES, wake=self._wake_up
        )
        self._on_leftovers = on_leftovers
        self._home = Home(place.directory, place.max_bytes)
        self._about = about
        self._about_written: About | None = None
        self._attempt = about.identity.attempt
        self._folder: Folder | None = None
        self._segments: Segments | None = None
        self._wake = threading.Event()
        self._dirty = threading.Event()
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._farewell: str | None = None
        self._written_to = self._cursor = 0
        self._tidied_at = 0.0
        self._names_durable = False
        self._broken: OSError | None = None
        self.cpu_s = [0.0, 0.0]

    def _wake_up(self) -> None:
        self._wake.set()

    def bodies(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """Names and bodies of the threads that whoever owns this runs."""
        return ("spool", self.write), ("sync", self.sync)

    @property
    def kept(self) -> int:
        """Records that the next start or ``floatscope sync`` will find, though the disk may not have them for good."""
        return self.outbox.stored if self._segments is not None and self._segments.are_there() else 0

    def note_attempt(self, attempt: int) -> None:
        """The server has said which attempt this is."""
        self._attempt = attempt

    def finish(self, reason: str) -> None:
        """Nothing follows: write what is left, or remove everything if the server has it all, and stop."""
        self._farewell = reason
        self._ending.set()
        self._wake.set()
        self._dirty.set()

    def nbytes(self) -> int:
        """Bytes on disk that hold something the server has not acknowledged."""
        return self._segments.nbytes(self.outbox.acknowledged) if self._segments is not None else 0

    def forget_descriptors(self) -> None:
        """In a forked child."""
        if self._segments is not None:
            self._segments.forget_descriptors()
        if self._folder is not None:
            self._folder.close()

    # The writing thread

    def write(self) -> None:
        """Body of the writing thread."""
        try:
            self._write_until_the_end()
        except OSError as error:
            self._switch_off(_REASONS.get(error.errno or 0, "unusable"), error.strerror or str(error))
        except Exception as error:  # the one guard of this thread: sending goes on without a spool
            logger.debug("the spool failed", exc_info=True)
            self._switch_off("internal", repr(error))
        finally:
            self._ended.set()
            self._dirty.set()

    def _write_until_the_end(self) -> None:
        segments = self._open()
        while True:
            if self._broken is not None:
                raise self._broken
            ending = self._ending.is_set()
            self._write_what_waits(segments)
            if ending:
                break
            if time.monotonic() - self._tidied_at >= _TIDY_EVERY_S:
                self._tidy(segments)
            self.cpu_s[0] = time.thread_time()
            self._wake.wait(_TIDY_EVERY_S)
            self._wake.clear()
        self._end(segments)

    def _open(self) -> Segments:
        home = self._home
        home.open()
        if not home.has_room(self.place.segment_bytes) and not self._make_room(None):
            raise OSError(errno.ENOSPC, "less than a twentieth of the disk is free, or the cap is reached")
        home.clear_unfinished()
        self._folder = folder = Folder.create(home.path, self._about.identity.writer)
        self._segments = segments = Segments(folder.path, self.place.segment_bytes)
        self._tidy(segments)
        self.outbox.attach(segments)
        if others := [path for path in home.writers() if path != folder.path]:
            self._on_leftovers(others)
        return segments

    def _write_what_waits(self, segments: Segments) -> None:
        while entries := self.outbox.unwritten(min(_WRITE_BYTES, self.place.segment_bytes // 2)):
            buffers = [part for entry in entries for part in buffers_of(entry)]
            if segments.must_begin(sum(map(len, buffers))):
                self._begin(segments, entries[0].seq)
            segments.append(buffers, entries[0].seq, entries[-1].end)
            self._written_to = entries[-1].end - 1
            self.outbox.written()
            self._dirty.set()

    def _begin(self, segments: Segments, first: int) -> None:
        size = self.place.segment_bytes
        segments.forget(self.outbox.acknowledged)
        if not self._home.has_room(size) and not self._make_room(segments):
            raise OSError(errno.ENOSPC, "less than a twentieth of the disk is free, or the cap is reached")
        self._keep_about()
        assert self._about_written is not None
        segments.begin(first, self._about_written.encoded())

    def _make_room(self, own: Segments | None) -> bool:
        """Give up the oldest history, of writers that are gone first. False if that is not enough."""
        for path in self._home.writers():
            folder = Folder.adopt(path)
            if folder is None:
                continue
            try:
                if self._condense_left(folder):
                    return True
            finally:
                folder.close()
        while own is not None and (numbers := own.condensable()):
            self.outbox.lose_stored(own.condense(self.outbox.hold_back(*numbers), self._about.encoded()))
            if self._home.has_room(self.place.segment_bytes):
                return True
        return False

    def _condense_left(self, folder: Folder) -> bool:
        segments = Segments(folder.path, self.place.segment_bytes)
        about = segments.load().about
        try:
            while segments.condensable():
                segments.condense(folder.cursor(), about or b"")
                if self._home.has_room(self.place.segment_bytes):
                    return True
        finally:
            segments.forget_descriptors()
        return False

    def _tidy(self, segments: Segments) -> None:
        if not segments.are_there():
            raise OSError(errno.ENOENT, "somebody removed files of it")
        self._tidied_at = time.monotonic()
        self._keep_about()
        acknowledged = self.outbox.acknowledged
        if acknowledged > self._cursor:
            segments.forget(acknowledged)
            assert self._folder is not None
            self._folder.write_cursor(acknowledged)
        self._cursor = acknowledged

    def _keep_about(self) -> None:
        assert self._folder is not None
        identity = msgspec.structs.replace(self._about.identity, attempt=self._attempt)
        about = msgspec.structs.replace(self._about, identity=identity, layers=self.outbox.layers)
        if about != self._about_written:
            self._folder.write_about(about.encoded())
            self._about_written = about

    def _end(self, segments: Segments) -> None:
        folder = self._folder
        assert folder is not None
        if self.outbox.empty():
            segments.forget_descriptors()
            folder.remove()
            return
        self._tidy(segments)
        if segments.active >= 0:
            assert self._farewell is not None
            segments.append(encoded(kind=Kind.BYE, payload=self._farewell.encode()), 0, 0)
            os.fdatasync(segments.active)
        folder.sync()
        segments.forget_descriptors()
        folder.close()

    def _switch_off(self, reason: str, why: str) -> None:
        self.outbox.detach()
        logger.warning(
            "the spool in %s is off (%s: %s): telemetry waits in memory only, and what waits there is lost with this "
            "process. Training goes on. This is said once.",
            self.place.directory,
            reason,
            why,
        )
        self.off = reason  # last: whoever sees it finds the reason in the log

    # The other thread

    def sync(self) -> None:
        """Body of the thread that waits for the disk: at most once a second, and not for what the server has."""
        try:
            while not self._ended.is_set():
                self._dirty.wait()
                self._dirty.clear()
                self._ended.wait(_SYNC_EVERY_S)
                self._sync_once()
                self.cpu_s[1] = time.thread_time()
        except OSError as error:
            self._broken = error
            self._wake.set()

    def _sync_once(self) -> None:
        segments = self._segments
        if segments is None or segments.active < 0 or self._ended.is_set():
            return
        needed = self._written_to > self.outbox.acknowledged
        descriptors = [os.dup(segments.active)]
        while segments.full:
            descriptors.append(segments.full.popleft())
        try:
            if needed:
                for descriptor in descriptors:
                    os.fdatasync(descriptor)
                if len(descriptors) > 1 or not self._names_durable:
                    self._names_durable = True
                    assert self._folder is not None
                    self._folder.sync()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
