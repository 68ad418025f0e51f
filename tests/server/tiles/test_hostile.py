"""Steps that jump, go back or come far too late, and attempts without end: what is sealed, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import event

from floatscope import wire
from floatscope_server.frame import Frame
from floatscope_server.store import Store
from floatscope_server.store.due import due_in
from floatscope_server.store.sealer import Sealer
from tests.server.tiles.frames import random_frame
from tests.server.tiles.sealing import assert_sealed, deliver, judge, open_frames, states

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore

_LAYERS = 3


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _sealer(store: Store, *, monotonic: Callable[[], float] | None = None) -> Sealer:
    """One that hears of every block, and finds every pause over unless it has a clock."""
    sealer = Sealer(store, lost_after_s=60.0, slack=8, monotonic=monotonic or partial(next, count(0, 1000)))
    store.observers.append(sealer.observe)
    return sealer


def _seal_all(store: Store, sealer: Sealer) -> int:
    judge(store)
    done = 0
    while found := sealer.seal_due():
        done += found
    assert not sealer.failed
    return done


def _frames(firsts: Sequence[int], steps: int) -> list[tuple[int, Frame]]:
    """Every cell is observed."""
    rng = np.random.default_rng(len(firsts))
    found: list[tuple[int, Frame]] = []
    while len(found) < len(firsts):
        frame = random_frame(rng, firsts[len(found)], steps, range(_LAYERS))
        if frame.observed.all():
            found.append((0, frame))
    return found


def test_one_wild_step_does_not_have_tiles_sealed_that_are_being_filled(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)])
    sealer = _sealer(store)
    frames = _frames([*range(0, 40, 4), 10**6, *range(40, 100, 4)], 4)
    for _, frame in frames:
        deliver(one, [frame])
        if frame.first_step < 10**6:
            _seal_all(store, sealer)
            # The newest block begins at its step, and the eight before it are left alone.
            assert states(store)[1][0] == max(0, frame.first_step + 1 - 8) // 16 * 16
    assert_sealed(store, [item for item in frames if item[1].first_step < 10**6], layers=_LAYERS, ranks=1)


def test_steps_that_go_back_are_patched_in_and_not_sealed_under_the_rank(
    store: Store, pen: MakePen, make: Make
) -> None:
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)])
    sealer = _sealer(store)
    frames = _frames([*range(0, 200, 5), *range(60, 260, 5)], 5)
    for _, frame in frames:
        deliver(one, [frame])
        _seal_all(store, sealer)
    assert states(store)[1][0] == (256 - 8) // 16 * 16
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)


def test_what_is_late_for_many_tiles_is_patched_in_one_go(store: Store, pen: MakePen, make: Make) -> None:
    slow, fast = (
        pen(store, rank=rank, world=2, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)]) for rank in (1, 0)
    )
    now = [0.0]
    sealer = _sealer(store, monotonic=lambda: now[0])
    frames: list[tuple[int, Frame]] = []
    rng = np.random.default_rng(3)

    def send(rank: int, first: int, steps: int) -> None:
        frames.append((rank, random_frame(rng, first, steps, range(_LAYERS), placement="data")))
        deliver(slow if rank else fast, [frames[-1][1]])

    for first in range(0, 1500, 50):
        send(0, first, 50)
    _seal_all(store, sealer)
    sealed = states(store)[1][0]
    assert sealed >= 400
    for first in range(0, 400, 40):
        send(1, first, 40)
    # No time passes, and every tile is patched.
    _seal_all(store, sealer)
    assert open_frames(store) == len([1 for _, frame in frames[:30] if frame.first_step + frame.steps > sealed])
    # A mean that is patched is one of what was rounded to float32.
    assert_sealed(store, frames, layers=_LAYERS, ranks=2, rtol=4e-6)
    # What trickles into one of them waits for its turn.
    send(1, 400, 4)
    send(1, 404, 4)
    before = states(store)[1][1]
    assert _seal_all(store, sealer) == 1
    send(1, 408, 4)
    assert _seal_all(store, sealer) == 0
    now[0] += 2.0
    assert _seal_all(store, sealer) == 1
    assert states(store)[1][1] == before + 2


def test_what_is_due_is_found_in_a_few_statements_after_fifty_attempts(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    for attempt in range(50):
        one = pen(store, layers=[make.layer(0, "l")])
        one.deliver(
            wire.Body(
                summaries=tuple(make.summaries(kind, 10 * attempt, np.ones((30, 1))) for kind in ("grad", "weight"))
            )
        )
    clock.now += 31.0
    one.ask(wire.Beat())
    sealer = _sealer(store)
    _seal_all(store, sealer)
    # But for the last one all have ended.
    sealed = states(store)
    ends = [10 * attempt + 30 for attempt in range(49)]
    assert [sealed[number][0] for number in range(1, 50)] == [-(-end // 256) * 256 for end in ends]
    asked: list[str] = []
    with store.read() as session:
        engine = session.get_bind().engine
        event.listen(engine, "before_cursor_execute", lambda *args: asked.append(str(args[2])))
        found, more = due_in(session, 1, now=store.now(), slack=8, lost_after_s=60.0)
    assert len(asked) < 10
    assert (found, more) == ([], True)
