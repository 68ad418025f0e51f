"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["in_folder", "whole_file"]

_EVENTS = "*.tfevents.*"


def whole_file(target: Path, write: Callable[[Path], None], *, force: bool) -> None:
    """Let ``write`` make a file beside ``target``, and put it in its place once it is on disk.

    ``FileExistsError`` if there is one already and ``force`` is not given. Whatever ``write`` raises leaves nothing.
    """
    if target.exists() and not force:
        raise FileExistsError(f"{target} is there already; add --force to overwrite it")
    # Where a link leads to: the link stays.
    place = Path(os.path.realpath(target))
    if place.exists() and not place.is_file():
        raise FileExistsError(f"{target} is no file that could be replaced")
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    try:
        write(partial)
        _to_disk(partial)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def in_folder(target: Path, write: Callable[[Path], None], *, force: bool) -> None:
    """The same of event files in the folder ``target``: ``write`` gets an empty folder in it. With ``force`` the event
    files that were there go; nothing else does."""
    before = list(target.glob(_EVENTS)) if target.is_dir() else []
    if before and not force:
        raise FileExistsError(f"{target} has event files already; add --force to replace them, or name another folder")
    made = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    partial = target / f".{secrets.token_hex(4)}.part"
    partial.mkdir()
    try:
        write(partial)
        for path in partial.iterdir():
            _to_disk(path)
            path.replace(target / path.name)
            before = [old for old in before if old.name != path.name]
        for old in before:
            old.unlink()
    except BaseException:
        shutil.rmtree(partial)
        if made:
            target.rmdir()
        raise
    partial.rmdir()


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
