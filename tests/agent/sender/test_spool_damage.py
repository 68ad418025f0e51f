"""A spool that was cut or flipped: every intact batch arrives, once and in order, and the rest is counted."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from floatscope import wire
from floatscope._spool._format import HEADER_BYTES, Found, Kind, scan
from floatscope._spool._segments import Segments
from tests.agent.sender.spooling import new_outbox, spool


def delivered(folder: Path) -> tuple[list[wire.Block | wire.Gap], dict[str, int]]:
    """What a server gets from the spool in ``folder``, in order, and what was lost."""
    segments = Segments(folder, 1)
    contents = segments.load()
    outbox = new_outbox()
    outbox.resume(segments, contents, 0, ())
    if contents.torn is not None:
        outbox.append(contents.torn)
    outbox.rewind(1)
    kept: list[wire.Block | wire.Gap] = []
    while (data := outbox.next(max_in_flight=1, credit=1 << 20)) is not None:
        message = wire.decode_agent(data)
        assert isinstance(message, wire.Block | wire.Gap)
        kept.append(message)
        outbox.acknowledge(message.seq)
    assert outbox.empty()
    assert outbox.counts().waiting == 0
    segments.forget_descriptors()
    return kept, outbox.counts().lost


def check(folder: Path, intact: set[int], batches: int) -> None:
    """Exactly the steps ``intact`` arrive, and what else there was is counted."""
    kept, lost = delivered(folder)
    assert [message.seq for message in kept] == list(range(1, len(kept) + 1))
    bodies = [wire.decode_body(message) for message in kept if isinstance(message, wire.Block)]
    steps = [body.first_step for body in bodies if body.scalars]
    assert steps == sorted(intact)
    assert lost.get("spool_damaged", 0) == batches - 1 - len(intact)


def records_of(path: Path) -> list[Found]:
    fd = os.open(path, os.O_RDONLY)
    try:
        found = list(scan(fd, 0, path.stat().st_size))
    finally:
        os.close(fd)
    assert all(isinstance(part, Found) for part in found)
    return [part for part in found if isinstance(part, Found)]


def cuts(end: int, step: int) -> Iterator[int]:
    yield from range(end - 1, max(0, end - (64 << 10)) - 1, -step)


@pytest.mark.parametrize("every", [53, pytest.param(1, marks=pytest.mark.long)])
def test_cut_at_every_byte_of_the_last_64_kib(tmp_path: Path, every: int) -> None:
    batches = 60
    spool(tmp_path / "whole", batches, size=1200)
    [path] = (tmp_path / "whole").iterdir()
    records = records_of(path)
    assert path.stat().st_size > 64 << 10
    for cut in cuts(path.stat().st_size, every):
        os.truncate(path, cut)
        whole = {part.header.first for part in records if part.end <= cut and part.header.kind is Kind.BLOCK}
        torn = any(part.offset < cut < part.end for part in records)
        kept, lost = delivered(tmp_path / "whole")
        bodies = [wire.decode_body(message) for message in kept if isinstance(message, wire.Block)]
        assert [body.first_step for body in bodies if body.scalars] == sorted(whole)
        assert lost.get("spool_damaged", 0) == torn
        assert [message.seq for message in kept] == list(range(1, len(kept) + 1))


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_random_flips(tmp_path: Path, count: int) -> None:
    batches = 40
    spool(tmp_path / "whole", batches, size=400, segment_bytes=6000)
    paths = sorted((tmp_path / "whole").iterdir())
    assert len(paths) > 2
    records = {path: records_of(path) for path in paths}
    rng = random.Random(7)
    for _ in range(count):
        flipped: dict[Path, set[int]] = {}
        originals: dict[Path, bytes] = {}
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            path = rng.choice(paths)
            data = bytearray(path.read_bytes())
            originals.setdefault(path, bytes(data))
            place = rng.randrange(len(data))
            data[place] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            flipped.setdefault(path, set()).add(place)
        parts = [(path, part) for path in paths for part in records[path] if part.header.kind <= Kind.GAP]
        whole = [part for path, part in parts if not any(part.offset <= at < part.end for at in flipped.get(path, ()))]
        intact = {part.header.first for part in whole if part.header.kind is Kind.BLOCK}
        kept, lost = delivered(tmp_path / "whole")
        assert [message.seq for message in kept] == list(range(1, len(kept) + 1))
        bodies = [wire.decode_body(message) for message in kept if isinstance(message, wire.Block)]
        assert [body.first_step for body in bodies if body.scalars] == sorted(intact)
        if parts[-1][1] in whole:  # of what is damaged at the end only a bound is known
            assert lost.get("spool_damaged", 0) == batches - 1 - len(intact)
        elif len(intact) < batches - 1:
            assert lost["spool_damaged"] >= 1
        for path, original in originals.items():
            path.write_bytes(original)


def test_bytes_missing_in_the_middle_cost_their_records_only(tmp_path: Path) -> None:
    batches = 30
    spool(tmp_path / "whole", batches, size=300)
    [path] = (tmp_path / "whole").iterdir()
    records = records_of(path)
    data = path.read_bytes()
    for number in range(2, 28, 3):
        part = records[number]
        middle = part.offset + HEADER_BYTES + 100
        path.write_bytes(data[:middle] + data[middle + 37 :])
        gone = {part.header.first} if part.header.kind is Kind.BLOCK else set()
        check(tmp_path / "whole", set(range(batches)) - {batches // 2} - gone, batches)


def test_zeros_at_the_end_are_one_loss(tmp_path: Path) -> None:
    spool(tmp_path / "whole", 10, size=300)
    [path] = (tmp_path / "whole").iterdir()
    with path.open("ab") as file:
        file.write(bytes(100_000))
    kept, lost = delivered(tmp_path / "whole")
    assert lost == {"spool_damaged": 1}
    assert len(kept) == 11


def test_anything_may_lie_in_a_spool(tmp_path: Path) -> None:
    rng = random.Random(3)
    spool(tmp_path / "whole", 5, size=100)
    [path] = (tmp_path / "whole").iterdir()
    header = path.read_bytes()[:HEADER_BYTES]
    for number in range(200):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        parts = [rng.choice((rng.randbytes(rng.randrange(200)), header, header[:4], b"")) for _ in range(8)]
        (folder / f"{1:016d}.spool").write_bytes(b"".join(parts))
        delivered(folder)
        shutil.rmtree(folder)
