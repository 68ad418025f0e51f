"""The 8-bit dtypes: passes look their values up in a table."""

from __future__ import annotations

import torch

__all__ = ["FLOAT8", "float8_tables", "float8_tables_on"]

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
"""In the order of the tables, which kernels.cu and cpu.c number them by."""


def float8_tables() -> torch.Tensor:
    """int32 [4, 256] on the host: the float32 bits of every code of each dtype of ``FLOAT8``."""
    codes = torch.arange(256, dtype=torch.uint8, device="cpu")
    return torch.stack([codes.view(dtype).to(torch.float32).view(torch.int32) for dtype in FLOAT8])


def float8_tables_on(device: torch.device) -> torch.Tensor:
    """The same on ``device``, there for every stream to read."""
    tables = float8_tables()
    if device.type == "cpu":
        return tables
    # On a stream of its own: waiting for the current one could take as long as what the training has queued there.
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        there = tables.pin_memory().to(device, non_blocking=True)
    copied = stream.record_event()
    while not copied.query():
        pass
    return there
