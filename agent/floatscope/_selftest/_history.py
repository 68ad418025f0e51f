"""What earlier self-tests found, in one file of JSON lines."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from floatscope._spool._home import default_directory

__all__ = ["Change", "Entry", "History", "Line", "changes"]

_KEPT = 200
"""Four years of weekly tests, some 500 KiB."""
_MOST_BYTES = 4 << 20
"""Read from the end of the file: what is kept has a tenth of that."""
_NOTABLE = 1.25
"""Other kernels sum in another order, which moves the largest error by percents; another accumulator doubles it."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One stage as it came out. ``ratio`` is None where the error was no finite number, which JSON does not have."""

    device: str
    format: str
    stage: str
    how: str
    ratio: float | None
    passed: bool

    @property
    def share(self) -> float:
        """``ratio``, or not a number."""
        return math.nan if self.ratio is None else self.ratio


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One self-test: when (UTC, ISO 8601), with which software, on what, and how it came out."""

    time: str
    stack: str
    chips: tuple[str, ...]
    lines: tuple[Line, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A stage that is no longer what it was; ratios are errors as shares of their bounds."""

    device: str
    format: str
    stage: str
    before: float
    now: float
    how_before: str
    how_now: str


class History:
    """The file at ``path``; one that does not exist is empty, and lines that are damaged are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_user(cls, environment: Mapping[str, str]) -> History:
        """Beside the spools: in FLOATSCOPE_DIR, else in the user's state folder."""
        folder = Path(default_directory(environment)).expanduser()
        return cls((folder if environment.get("FLOATSCOPE_DIR") else folder.parent) / "selftest.jsonl")

    def entries(self) -> list[Entry]:
        """Oldest first."""
        try:
            # A pipe would be waited for, and a device has no end.
            if not self.path.is_file():
                return []
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - _MOST_BYTES))
                lines = file.read(_MOST_BYTES).splitlines()
        except OSError:
            return []
        found = []
        for line in lines[-_KEPT:]:
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(line, type=Entry))
        return found

    def last(self, chips: Sequence[str] | None = None) -> Entry | None:
        """The newest entry, with ``chips`` the newest on those."""
        wanted = None if chips is None else tuple(chips)
        return next((entry for entry in reversed(self.entries()) if wanted in (None, entry.chips)), None)

    def add(self, entry: Entry) -> None:
        """Append ``entry``, dropping the oldest beyond some hundred. ``OSError`` where that cannot be written."""
        place = Path(os.path.realpath(self.path))
        if place.exists() and not place.is_file():
            raise OSError(errno.EINVAL, "there is something that is no file")
        place.parent.mkdir(parents=True, exist_ok=True)
        kept = [*self.entries()[-_KEPT + 1 :], entry]
        # Whole or not at all: a test that is killed must not cost the history.
        temporary = place.with_name(f"{place.name}.new")
        temporary.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept))
        temporary.replace(place)


def changes(before: Entry, now: Entry) -> list[Change]:
    """Stages of both whose error moved by a quarter or more, that pass no longer, or that run in another way."""
    known = {(line.device, line.format, line.stage): line for line in before.lines}
    found = []
    for line in now.lines:
        old = known.get((line.device, line.format, line.stage))
        if old is None:
            continue
        low, high = sorted((old.share, line.share))
        if old.how != line.how or old.passed != line.passed or high > _NOTABLE * low:
            found.append(
                Change(
                    device=line.device,
                    format=line.format,
                    stage=line.stage,
                    before=old.share,
                    now=line.share,
                    how_before=old.how,
                    how_now=line.how,
                )
            )
    return found
