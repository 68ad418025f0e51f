"""A tile is sealed in pieces, so that those who are waited for have the interpreter in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.store import Store, summary_tail
from floatscope_server.store.sealer import Sealer
from floatscope_server.store.share import Share
from tests.server.tiles.sealing import judge, states

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen

LAYERS = 130
"""Three blocks."""


def _delivered(store: Store, pen: MakePen, make: Make, *, steps: int) -> None:
    one = pen(store, layers=[make.layer(index, f"l{index}") for index in range(LAYERS)])
    for step in range(0, steps, 50):
        one.deliver(wire.Body(summaries=(make.summaries("grad", step, np.ones((50, LAYERS))),)))
    judge(store)


def test_others_have_twice_the_time_that_was_used() -> None:
    waits: list[float] = []
    clock = iter([0.0, 10.0, 10.5, 10.5, 11.0, 11.25])
    share = Share(waits.append, cpu=lambda: next(clock))
    share.begin()
    share.rest()
    share.rest()
    share.hurry = True
    share.rest()
    share.hurry = False
    share.rest()
    assert waits == [1.0, 0.5]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_tile_is_sealed_with_pauses(
    store: Store,
    pen: MakePen,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
    monkeypatch: pytest.MonkeyPatch,
    in_pieces: bool,
) -> None:
    if in_pieces:
        monkeypatch.setattr(summary_tail, "_BYTES", 1 << 10)
    rests = 0

    def rest(_: Share) -> None:
        nonlocal rests
        rests += 1

    monkeypatch.setattr(Share, "rest", rest)
    _delivered(store, pen, make, steps=600)
    sealer = Sealer(store, lost_after_s=60.0)
    sealer.start()
    try:
        wait_for(lambda: states(store)[1][0] == 256, "the tile")
    finally:
        sealer.stop()
    assert rests > 9 if in_pieces else rests == 3


def test_nobody_waits_for_a_sealer_that_is_behind_or_alone(
    store: Store,
    pen: MakePen,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurried: list[bool] = []
    monkeypatch.setattr(Share, "rest", lambda share: hurried.append(share.hurry))
    _delivered(store, pen, make, steps=1100)
    sealer = Sealer(store, lost_after_s=60.0)
    assert sealer.seal_due() == 1
    assert hurried == [True] * 3
    hurried.clear()
    sealer.start()
    try:
        wait_for(lambda: states(store)[1][0] == 768, "all tiles that are due")
    finally:
        sealer.stop()
    assert hurried == [True] * 3 + [False] * 3
