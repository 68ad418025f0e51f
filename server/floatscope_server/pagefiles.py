"""The files of the page, in memory, under another address for each version, so that browsers may keep them."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["ENTRY", "LARGE", "PageFile", "PageFiles", "Snapshot"]

ENTRY = "index.html"

_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_PREFIX = "/static/"
_SHEET = re.compile(rb'[ \t]*<link rel="stylesheet" href="/static/([^"]+)" />\n')
_SHEETS = "style.css"
"""All that the entry names, in that order: each of a dozen small ones would hold back the first paint for its turn."""
_TEXTS = ("text/", "image/svg")
_LEAST = 1000
"""Bytes below which a packet is what it takes, compressed or not."""
LARGE = 1 << 20
"""Bytes from which on a file is compressed when it is asked for, and not at once."""


@dataclass(frozen=True)
class PageFile:
    """One of them as it is sent."""

    data: bytes
    media_type: str
    etag: str

    @cached_property
    def gzipped(self) -> bytes | None:
        """None where that would save nothing. It takes 0.2 s for the chart library, once."""
        if len(self.data) < _LEAST or not self.media_type.startswith(_TEXTS):
            return None
        return gzip.compress(self.data, 6, mtime=0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files at one moment, by their path; ``version`` is another one when any of them is."""

    version: str
    files: dict[str, PageFile]
    changed: frozenset[tuple[str, int, int]]

    def named(self, path: str) -> tuple[PageFile | None, bool]:
        """The file at ``path``, and whether it says for which version it asks and that is this one."""
        version, slash, rest = path.partition("/")
        if slash and version.startswith("@"):
            return self.files.get(rest), version == f"@{self.version}"
        return self.files.get(path), False


class PageFiles:
    """The files below ``root``, without hidden ones, and ``others``, which lie elsewhere, by name."""

    def __init__(self, root: Path, others: dict[str, Path]) -> None:
        self._root = root
        self._others = others
        self._lock = threading.Lock()
        self._held: Snapshot | None = None

    @property
    def held(self) -> Snapshot | None:
        """The newest that was taken, if any."""
        return self._held

    def take(self) -> Snapshot:
        """What is there now, read anew if any file is newer. Call it in a thread."""
        with self._lock:
            paths = {name: (str(path), path.stat()) for name, path in self._others.items()}
            paths |= {name: (entry.path, entry.stat()) for name, entry in _below(str(self._root), "")}
            changed = frozenset((name, stat.st_mtime_ns, stat.st_size) for name, (_, stat) in paths.items())
            if self._held is None or self._held.changed != changed:
                contents = {name: Path(path).read_bytes() for name, (path, _) in sorted(paths.items())}
                self._held = _snapshot(contents, changed)
            return self._held


def _below(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _below(entry.path, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def _joined(entry: bytes, contents: dict[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
    """``entry`` with one style sheet in place of all that it names, and ``contents`` with that one too."""
    sheets = list(_SHEET.finditer(entry))
    if not sheets:
        return entry, contents
    link = sheets[0][0].replace(sheets[0][1], _SHEETS.encode())
    rest = _SHEET.sub(b"", entry[sheets[0].end() :])
    style = b"".join(contents[sheet[1].decode()] for sheet in sheets)
    return entry[: sheets[0].start()] + link + rest, {**contents, _SHEETS: style}


def _snapshot(contents: dict[str, bytes], changed: frozenset[tuple[str, int, int]]) -> Snapshot:
    entry, contents = _joined(contents[ENTRY], contents)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    version = hashlib.sha256(repr(digests).encode()).hexdigest()[:16]
    # Modules import each other by relative addresses, which stay below that of the entry.
    entry = entry.replace(f'="{_PREFIX}'.encode(), f'="{_PREFIX}@{version}/'.encode())
    files = {name: _file(name, data, digests[name]) for name, data in contents.items()}
    files[ENTRY] = _file(ENTRY, entry, hashlib.sha256(entry).hexdigest())
    return Snapshot(version=version, files=files, changed=changed)


def _file(name: str, data: bytes, digest: str) -> PageFile:
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    file = PageFile(data=data, media_type=kind, etag=digest[:32])
    if len(data) < LARGE:
        _ = file.gzipped
    return file
