"""A seal that is killed, overtaken or out of disk leaves what was there, and is made up for."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlmodel import text

from floatscope_server.frame import Frame
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer
from tests.server.tiles.frames import random_frame
from tests.server.tiles.interposed import Interposed
from tests.server.tiles.sealing import assert_sealed, deliver, judge, open_frames, states, tiles

if TYPE_CHECKING:
    from tests.server.conftest import Clock, Make, MakePen, OpenStore

_LAYERS = 60
"""Fifteen blocks: one tile is more than one transaction takes."""


def _filled(store: Store, pen: MakePen, make: Make) -> list[tuple[int, Frame]]:
    """Two tiles and a half."""
    rng = np.random.default_rng(0)
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)])
    frames = [(0, random_frame(rng, step, 5, range(_LAYERS))) for step in range(0, 45, 5)]
    for _, frame in frames:
        deliver(one, [frame])
    judge(store)
    return frames


def _sealer(store: Store | Interposed, monotonic: Callable[[], float] = lambda: 0.0) -> Sealer:
    return Sealer(store, lost_after_s=60.0, slack=8, monotonic=monotonic)


@pytest.mark.engines("sqlite")
def test_a_kill_at_any_transaction_loses_and_doubles_nothing(
    open_store: OpenStore, pen: MakePen, make: Make, clock: Clock, tmp_path: Path
) -> None:
    store = open_store()
    frames = _filled(store, pen, make)
    before = open_frames(store)
    store.stop()
    whole = shutil.copytree(tmp_path / "data", tmp_path / "whole")
    store = Store(Settings(data=whole), clock=clock)
    store.start()
    counted = Interposed(store, 0, lambda: None)
    assert _sealer(counted).seal_due() == 1
    jobs, expected = counted.jobs, tiles(store)
    store.stop()
    assert jobs >= 3
    # After one of them is before the next one.
    for job, when in [*((job, "before") for job in range(1, jobs + 1)), (jobs, "after")]:
        folder = shutil.copytree(tmp_path / "data", tmp_path / f"{when}-{job}")
        command = [sys.executable, "-m", "tests.server.tiles.killed", str(folder), str(job), when]
        assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL
        store = Store(Settings(data=folder), clock=clock)
        store.start()
        done = when == "after"
        assert states(store)[1][0] == (16 if done else 0)
        assert (open_frames(store) == before) != done
        assert _sealer(store).seal_due() == 1
        if not done:
            assert tiles(store) == expected
        assert_sealed(store, frames, layers=_LAYERS, ranks=1)
        store.stop()


@pytest.mark.parametrize("job", [1, 2, 4])
def test_of_two_sealers_one_seals(store: Store, pen: MakePen, make: Make, job: int) -> None:
    frames = _filled(store, pen, make)
    other = _sealer(store)
    slow = _sealer(Interposed(store, job, other.seal_due))
    assert slow.seal_due() == 0
    assert (slow.failed, other.sealed) == (0, 1)
    assert states(store)[1][0] == 16
    after = tiles(store)
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)
    assert slow.seal_due() == 1
    assert states(store)[1][0] == 32
    assert tiles(store)[0] > after[0]
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)


@pytest.mark.engines("sqlite")
def test_a_full_disk_leaves_all_as_it_was(store: Store, pen: MakePen, make: Make) -> None:
    frames = _filled(store, pen, make)
    before = open_frames(store)
    now = [0.0]

    def limit(pages: int) -> None:
        store.write(lambda session: session.connection().execute(text(f"PRAGMA max_page_count={pages}")).all())

    # One page is not allowed: it becomes as many as there are.
    sealer = _sealer(Interposed(store, 2, lambda: limit(1)), lambda: now[0])
    assert sealer.seal_due() == 0
    assert sealer.failed == 1
    assert (states(store)[1][0], open_frames(store)) == (0, before)
    # It is let alone for a second, then for two.
    for wait, failed in ((0.5, 1), (0.6, 2), (1.5, 2), (0.6, 3)):
        now[0] += wait
        assert sealer.seal_due() == 0
        assert sealer.failed == failed
    limit(1 << 30)
    now[0] += 4.1
    assert sealer.seal_due() == 1
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)
    now[0] += 0.1
    assert sealer.seal_due() == 1
    assert_sealed(store, frames, layers=_LAYERS, ranks=1)
