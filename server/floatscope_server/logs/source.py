"""What a name on the command line stands for: a file, compressed or not, or a folder of event files."""

from __future__ import annotations

import codecs
import gzip
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from floatscope_server.readers import HEAD_BYTES, LogFormat, detect
from floatscope_server.readers.extremes import LAYER_EXTREMES
from floatscope_server.readers.tfevents import TENSORBOARD, TENSORBOARD_EVENTS

__all__ = [
    "Log",
    "LogError",
    "chunks_of",
    "counts_done_steps",
    "ended_lines",
    "event_files",
    "framework_of",
    "growing",
    "is_compressed",
    "log_name",
    "look",
    "name_of",
]

_CHUNK_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_EVENTS = "tfevents"
_GENERIC = re.compile(r"(trainer_log|trainer_state|train|training|log|output|console|events\.out\..*)$")
_ROTATED = re.compile(r"(?:\.\d{1,3}|[.-]\d{8}(?:-\d+)?)?(?:\.gz)?$")
_LONGEST = 1 << 20

_FRAMEWORKS = {
    "llamafactory-trainer-log": "llamafactory",
    "hf-trainer-state": "transformers",
    "hf-console": "transformers",
    "deepspeed-console": "deepspeed",
    "megatron-console": "megatron",
}


class LogError(Exception):
    """It cannot be read; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """``parts`` are its files in order."""

    path: Path
    parts: tuple[Path, ...]
    format: LogFormat

    @property
    def samples(self) -> bool:
        """Whether it holds readings of cards only."""
        return self.format.cards

    @property
    def beside(self) -> bool:
        """Whether it goes with a training's log and is none itself."""
        return self.samples or self.format is LAYER_EXTREMES

    @property
    def name(self) -> str:
        """A name for its run."""
        return name_of(self.path)


def log_name(path: Path) -> str:
    """What a file is called wherever it is, before and after it was rotated: ``train.log.1.gz`` is ``train.log``."""
    return _ROTATED.sub("", path.resolve().name) or path.name


def name_of(path: Path) -> str:
    """A name for the run of a log: the file's, or the folder's where the file's is everybody's."""
    name = log_name(path)
    stem = name.rsplit(".", 1)[0] or name
    if path.is_dir():
        stem = path.resolve().name
    elif _GENERIC.match(stem):
        stem = path.resolve().parent.name or stem
    return "".join(c if c.isprintable() and c not in "/\\" else "_" for c in stem).strip()[:100] or "log"


def framework_of(format_name: str) -> str:
    """Whose settings alerts of a log of this format name; empty where it does not tell."""
    return _FRAMEWORKS.get(format_name, "")


def counts_done_steps(format_name: str) -> bool:
    """Whether a log of this format numbers a record by the steps that are done, so that its first one is step 1.

    These frameworks do; of step lines and TensorBoard events nobody knows.
    """
    return format_name in _FRAMEWORKS


def event_files(folder: Path) -> list[Path]:
    """The event files in ``folder``, oldest first: their names begin with the time."""
    return sorted(path for path in folder.iterdir() if _EVENTS in path.name and path.is_file())


def look(path: Path) -> Log:
    """What ``path`` is. Raises ``LogError``."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            parts = event_files(path)
            if not parts:
                raise LogError(f"{path}: a folder without TensorBoard event files; name the files")
            return Log(path=path, parts=tuple(parts), format=TENSORBOARD_EVENTS)
        if not stat.S_ISREG(mode):
            raise LogError(f"{path}: no file; a pipe is followed by `floatscope follow - < {path}`")
        head = _head(chunks_of(path))
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    return Log(path=path, parts=(path,), format=growing(detect(head)))


def growing(log_format: LogFormat) -> LogFormat:
    """The reader of the same format that keeps the order of the file."""
    return TENSORBOARD_EVENTS if log_format is TENSORBOARD else log_format


def _head(chunks: Iterator[bytes]) -> bytes:
    """What tells the format."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    return head


def ended_lines(log_format: LogFormat, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """``chunks`` without a last line that has no end yet, where the format does not tell whether it is whole."""
    if not log_format.cuttable:
        yield from chunks
        return
    rest = b""
    wide = None
    for chunk in chunks:
        if wide is None:
            wide = chunk.startswith(_WIDE)
        at = len(chunk) if wide else max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if at or len(rest) > _LONGEST:
            yield rest + chunk[:at]
            rest = chunk[at:]
        else:
            rest += chunk


def is_compressed(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is one of gzip."""
    return head.startswith(_GZIP)


def chunks_of(path: Path) -> Iterator[bytes]:
    """The content in pieces, uncompressed. A compressed file that does not end gives what it holds."""
    with path.open("rb") as file:
        compressed = is_compressed(file.read(len(_GZIP)))
        file.seek(0)
        if not compressed:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            try:
                # Not `read`, which throws away what it has when the end is missing.
                while chunk := unpacked.read1(_CHUNK_BYTES):
                    yield chunk
            except (EOFError, zlib.error, gzip.BadGzipFile):
                return
