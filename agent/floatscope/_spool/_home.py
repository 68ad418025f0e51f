"""The folder of all spools of a machine's user: who may write where, who is alive, and how much room there is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from floatscope import wire

__all__ = ["About", "Folder", "Home", "default_directory"]

_WRITER = re.compile(r"[0-9a-f]{32}")
_CRC = struct.Struct("<I")
_CURSOR = struct.Struct("<QI")
_FREE_SHARE = 0.05
"""Of the disk that stays free for others."""
_UNFINISHED_S = 60.0


def default_directory(environment: Mapping[str, str]) -> str:
    """FLOATSCOPE_DIR, else ``floatscope/spool`` in XDG_STATE_HOME, else in ~/.local/state."""
    if chosen := environment.get("FLOATSCOPE_DIR"):
        return chosen
    state = environment.get("XDG_STATE_HOME") or ""
    # The specification ignores a relative path: https://specifications.freedesktop.org/basedir/latest/
    base = Path(state) if state.startswith("/") else Path("~/.local/state")
    return str(base / "floatscope" / "spool")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes a spool, and for which server: enough to speak for the process when it is gone."""

    server: str
    agent: str
    identity: wire.Identity
    config: dict[str, object] = {}
    layers: tuple[wire.Layer, ...] = ()

    def encoded(self) -> bytes:
        """For a record or, after a CRC-32, for a file."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decoded(data: bytes | None) -> About | None:
        """None for bytes that say nothing of the kind."""
        if data is None:
            return None
        try:
            return msgspec.msgpack.decode(data, type=About)
        except (msgspec.MsgspecError, RecursionError):
            return None


class Folder:
    """The folder of one writer, held by a lock for as long as this object is open."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, home: Path, writer: str) -> Folder:
        """A new one; nobody sees it before it is locked."""
        making = home / f".{writer}"
        making.mkdir(mode=0o700)
        try:
            lock = os.open(making / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            making.rename(home / writer)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return cls(home / writer, lock)

    @classmethod
    def adopt(cls, path: Path) -> Folder | None:
        """That of a writer that is gone; None when it lives, or when somebody else speaks for it."""
        try:
            lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it before may have removed the folder meanwhile.
            if os.fstat(lock).st_nlink:
                return cls(path, lock)
        except BlockingIOError:
            pass
        os.close(lock)
        return None

    def write_about(self, about: bytes) -> None:
        """Keep who writes here beside the segments too."""
        self._replace("about", _CRC.pack(zlib.crc32(about)) + about)

    def about(self) -> About | None:
        """None when the file is missing or damaged."""
        data = self._content("about")
        if len(data) < _CRC.size or zlib.crc32(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
            return None
        return About.decoded(data[_CRC.size :])

    def write_cursor(self, acknowledged: int) -> None:
        """Everything up to ``acknowledged`` is on the server's disk."""
        number = acknowledged.to_bytes(8, "little")
        self._replace("cursor", number + _CRC.pack(zlib.crc32(number)))

    def cursor(self) -> int:
        """0 when nothing is known: the server knows better anyway."""
        data = self._content("cursor")
        if len(data) != _CURSOR.size or zlib.crc32(data[:8]) != _CURSOR.unpack(data)[1]:
            return 0
        return int(_CURSOR.unpack(data)[0])

    def _replace(self, name: str, data: bytes) -> None:
        new = self.path / f"{name}.new"
        new.write_bytes(data)
        new.replace(self.path / name)

    def _content(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return b""

    def sync(self) -> None:
        """Make the names in it durable."""
        for path in (self.path, self.path.parent):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Delete it, lock and all."""
        shutil.rmtree(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the lock. Takes no lock of the process: also for a forked child."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._lock = -1


class Home:
    """The folder that holds one for each writer."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def open(self) -> None:
        """Make it, for this user alone, where it is missing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    def writers(self) -> list[Path]:
        """The folders in it, in the order of their last change."""
        found = [Path(entry) for entry in os.scandir(self.path) if _WRITER.fullmatch(entry.name) and entry.is_dir()]
        return sorted(found, key=_changed)

    def clear_unfinished(self) -> None:
        """Remove folders that a process was making when it was killed."""
        for path in self.path.glob(".????????????????????????????????"):
            if time.time() - _changed(path) > _UNFINISHED_S and (folder := Folder.adopt(path)) is not None:
                folder.remove()

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes keep to the cap and leave a twentieth of the disk free."""
        disk = os.statvfs(self.path)
        free = disk.f_bavail * disk.f_frsize - size
        return free >= _FREE_SHARE * disk.f_blocks * disk.f_frsize and self._used() + size <= self._max_bytes

    def _used(self) -> int:
        total = 0
        for writer in self.writers():
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(writer):
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat().st_size
        return total


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
