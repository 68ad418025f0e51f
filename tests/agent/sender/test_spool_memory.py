"""No server for the equivalent of ten minutes: memory stays bounded, the disk within its cap, and all arrives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from floatscope import wire
from floatscope._sender import Limits, Sender
from floatscope._spool._spooler import SpoolPlace
from tests.bench.sender import Record, resident_mb

if TYPE_CHECKING:
    from tests.agent.sender.conftest import IngestDouble

_LAYERS = 125
"""Of 8 statistics: 1,000 samples a step."""
_MOST_MB = 32.0


@pytest.mark.parametrize("steps", [500, pytest.param(6000, marks=pytest.mark.long)])
def test_ten_minutes_without_a_server(
    server: IngestDouble, tmp_path: Path, until: Callable[..., None], steps: int
) -> None:
    server.stop()
    place = SpoolPlace(directory=tmp_path / "spool")
    identity = wire.Identity(run="r", writer="0" * 32)
    sender = Sender(identity, server.url, limits=Limits(flush_s=100.0), spool=place)
    # What grows once: buffers, modules.
    for step in range(50):
        sender.put(Record(step, _LAYERS))
    until(lambda: sender._outbox.counts().waiting == 50)
    before, most = resident_mb(), 0.0
    for step in range(50, steps):
        sender.put(Record(step, _LAYERS))
        until(lambda: len(sender._queue) <= 20)
        most = max(most, resident_mb() - before)
    until(lambda: sender._outbox.counts().waiting == steps)
    most = max(most, resident_mb() - before)
    used = sum(path.stat().st_size for path in place.directory.rglob("*"))
    assert most <= _MOST_MB
    assert used <= place.max_bytes
    server.start()
    sender.close("finished")
    series = [part for body in server.bodies() for part in body.scalars if part.name == "loss"]
    arrived = [step for part in series for step in memoryview(part.steps).cast("q")]
    assert arrived == list(range(steps))
    assert server.gaps() == []
    assert list(place.directory.iterdir()) == []
