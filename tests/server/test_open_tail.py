"""The open tail of many ranks: what a question costs is what has come since the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.query import opentail
from floatscope_server.query.frames import FrameCache
from floatscope_server.query.line import canonical_line
from floatscope_server.query.opentail import OpenTail, TailKey
from floatscope_server.query.window import TileReader, source_of
from floatscope_server.store import Store
from floatscope_server.store.framed import frame_of
from floatscope_server.tiles.planes import raw_planes
from floatscope_server.tiles.statistics import Agg, Stat

if TYPE_CHECKING:
    from sqlmodel import Session

    from tests.server.conftest import Make, MakePen

RANKS, LAYERS, STEPS = 8, 4, 600


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many frames were decoded since it was last asked."""
    count = [0]

    def counted(data: bytes) -> Frame | None:
        count[0] += 1
        return frame_of(data)

    def since() -> int:
        found, count[0] = count[0], 0
        return found

    monkeypatch.setattr("floatscope_server.query.frames.frame_of", counted)
    return since


def test_a_frame_of_the_tail_is_decoded_once_whatever_is_asked(
    store: Store, pen: MakePen, make: Make, decoded: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Too small for decoded frames to stay: only planes can answer a second time.
    reader = TileReader(1 << 20)
    monkeypatch.setattr(reader.frames, "_max", 0)
    layers = [make.layer(index, f"l{index}") for index in range(LAYERS)]
    pens = [pen(store, layers=layers, rank=rank, world=RANKS) for rank in range(RANKS)]
    step = 0

    def deliver(steps: int) -> None:
        nonlocal step
        for rank, one in enumerate(pens):
            absmax = np.full((steps, LAYERS), rank + 1.0)
            part = msgspec.structs.replace(make.summaries("grad", step, absmax), placement="shard")
            one.deliver(wire.Body(summaries=(part,)))
        step += steps

    def largest(stat: Stat) -> float:
        with store.read() as session:
            source = source_of(session, 1, "layer/grad")
            assert source is not None
            window = reader.window(
                session,
                source,
                canonical_line(session, 1),
                first=0,
                last=step - 1,
                cell=2,
                wanted=[(stat, Agg.MAX)],
                layers=np.arange(LAYERS),
            )
        return float(np.nanmax(window.planes[stat, Agg.MAX]))

    for _ in range(STEPS // 50):
        deliver(50)
    assert largest(Stat.ABSMAX) == RANKS
    # Those on a border of 256 steps belong to two pieces.
    assert decoded() == RANKS * (STEPS // 50 + 2)
    for stat in (Stat.LOG2_AMAX, Stat.RMS, Stat.NONFINITE, Stat.ZERO_SHARE, Stat.ABSMAX):
        largest(stat)
    assert decoded() == 0
    deliver(1)
    assert largest(Stat.ABSMAX) == RANKS
    assert decoded() == RANKS


def test_what_no_rank_sends_is_not_merged() -> None:
    def of(rank: int) -> Frame:
        shape = 3, 2
        fields: dict[str, npt.NDArray[np.generic]] = {
            "count": np.full(shape, 10, "<i8"),
            "absmax": np.full(shape, rank + 1, "<f4"),
            **{name: np.zeros(shape, "<i8") for name in ("zeros", "nans", "infs")},
        }
        return Frame(first_step=0, steps=3, layers=np.arange(2), fields=fields, placement="data")

    planes = raw_planes([(rank, of(rank)) for rank in range(2)], first=0, columns=3, layers=2, ranks=2)
    assert {stat for stat, _ in planes} == {Stat.COUNT, Stat.ZEROS, Stat.NANS, Stat.INFS, Stat.ABSMAX}
    np.testing.assert_array_equal(planes[Stat.ABSMAX, Agg.VALUE], np.full((2, 3), 2.0))
    np.testing.assert_array_equal(planes[Stat.COUNT, Agg.VALUE], np.full((2, 3), 20.0))


def test_a_snapshot_from_before_a_seal_leaves_the_tail_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentail, "new_frames", lambda *_, **__: [])
    monkeypatch.setattr(opentail, "now_of", lambda _: None)
    kept = OpenTail(1 << 20, FrameCache(1 << 20))
    for sealed in (10, 5, 10, 5):
        with kept.chunks(cast("Session", None), TailKey(1, 1, 1, sealed), 0, 20, [Stat.ABSMAX]) as found:
            assert list(found) == []
