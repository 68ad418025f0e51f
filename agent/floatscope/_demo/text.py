"""Text to train on that every machine has: the sources of Python's own standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

__all__ = ["batches", "corpus"]

_MAX_BYTES = 2_000_000


def corpus(folder: Path | None = None, *, limit: int = _MAX_BYTES) -> torch.Tensor:
    """The first ``limit`` bytes of the top-level modules in ``folder`` (default: the standard library), by name.

    uint8 [n]. Any subset of the files will do; ``ValueError`` when less than 10 kB are there.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if len(text) < 10_000:
        raise ValueError(f"{folder} holds no Python sources to train on; install Python with its standard library")
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


def batches(text: torch.Tensor, *, batch: int, context: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Without end: random windows of ``text`` and the same shifted by one, int64 [batch, context] each."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(context)
    while True:
        start = torch.randint(len(text) - context - 1, (batch, 1), generator=generator)
        yield text[start + window].long(), text[start + window + 1].long()
