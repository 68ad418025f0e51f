"""What need not be computed again by this user on this machine: files of a private directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["cached", "is_cached"]

_DIGEST = hashlib.sha256().digest_size


def cached(kind: str, key: Sequence[str], make: Callable[[], bytes | None]) -> bytes:
    """The bytes kept for ``key``, and what ``make`` gives (then kept) where there are none. Empty for None.

    Kept in ``$XDG_CACHE_HOME/floatscope`` or ``~/.cache/floatscope``, which only this user may read or write: code from
    it runs on the device. A directory or file of somebody else's is not trusted; where no file can be kept, ``make``
    is called each time.
    """
    path = _path(kind, key)
    kept = None if path is None else _read(path)
    if kept is not None:
        return kept
    made = make()
    if made is not None and path is not None:
        with contextlib.suppress(OSError):
            _write(path, made)
    return made or b""


def is_cached(kind: str, key: Sequence[str]) -> bool:
    """Whether something is kept for ``key``."""
    path = _path(kind, key)
    return path is not None and _read(path) is not None


def _path(kind: str, key: Sequence[str]) -> Path | None:
    directory = _directory()
    name = f"{kind}-{hashlib.sha256(repr(tuple(key)).encode()).hexdigest()[:40]}"
    return None if directory is None else directory / name


def _directory() -> Path | None:
    try:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floatscope"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except (OSError, RuntimeError):  # no home directory
        return None
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return path if private else None


def _read(path: Path) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if os.fstat(handle).st_uid != os.geteuid():
            return None
        content = file.read()
    digest, data = content[:_DIGEST], content[_DIGEST:]
    # Written whole or not at all, but the disk may have been full or the machine may have gone down.
    return data if hashlib.sha256(data).digest() == digest else None


def _write(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
