"""What need not be computed again by this user on this machine: files of a directory that only they can write."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["cache_directory", "cached", "find", "is_cached", "keep", "private"]


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/floatscope`` or ``~/.cache/floatscope``; ``RuntimeError`` for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floatscope"


def private(directory: Path) -> Path:
    """``directory``, made if need be. ``OSError`` unless this user alone can write it: code from it is run."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(directory.lstat(), stat.S_ISDIR):
        raise PermissionError(f"{directory} is not a directory that only this user can write")
    return directory


def find(directory: Path, kind: str, key: Sequence[str]) -> Path | None:
    """The file kept for ``key`` in a private directory, if it is whole."""
    # The name tells the content: the disk may have been full, and half a library, once mapped, ends the process.
    for path in directory.glob(f"{_stem(kind, key)}-*"):
        if _is_ours(path.lstat(), stat.S_ISREG) and _digest(path.read_bytes()) == path.name.rpartition("-")[2]:
            return path
    return None


def keep(directory: Path, kind: str, key: Sequence[str], content: bytes) -> Path:
    """Keep ``content`` for ``key``, whole or not at all. ``OSError`` where the disk does not take it."""
    path = directory / f"{_stem(kind, key)}-{_digest(content)}"
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def cached(kind: str, key: Sequence[str], make: Callable[[], bytes | None]) -> bytes:
    """The bytes kept for ``key``, and what ``make`` gives (then kept) where there are none. Empty for None.

    Where nothing can be kept, ``make`` is called each time.
    """
    directory = _own_directory()
    found = None if directory is None else find(directory, kind, key)
    if found is not None:
        return found.read_bytes()
    made = make()
    if made is not None and directory is not None:
        with contextlib.suppress(OSError):
            keep(directory, kind, key, made)
    return made or b""


def is_cached(kind: str, key: Sequence[str]) -> bool:
    """Whether something is kept for ``key``."""
    directory = _own_directory()
    return directory is not None and find(directory, kind, key) is not None


def _own_directory() -> Path | None:
    try:
        return private(cache_directory())
    except (OSError, RuntimeError):
        return None


def _stem(kind: str, key: Sequence[str]) -> str:
    return f"{kind}-{_digest(repr(tuple(key)).encode())}"


def _is_ours(found: os.stat_result, kind: Callable[[int], bool]) -> bool:
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
