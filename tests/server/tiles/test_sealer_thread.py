"""The sealer beside ingest and the rules of a real server."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.alerts.engine import AlertEngine
from floatscope_server.live import LiveHub
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer
from tests.server.tiles.sealing import judge, states

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, Start


def test_what_the_rules_have_judged_is_sealed_while_more_comes(
    store: Store, pen: MakePen, make: Make, wait_for: Callable[[Callable[[], object], str], None]
) -> None:
    engine = AlertEngine(store, LiveHub(store, store.settings), store.settings)
    sealer = Sealer(store, lost_after_s=60.0)
    store.observers += [engine.observe, sealer.observe]
    engine.start()
    sealer.start()
    try:
        one = pen(store, layers=[make.layer(0, "l")])
        for step in range(0, 1000, 50):
            one.deliver(wire.Body(summaries=(make.summaries("grad", step, np.ones((50, 1))),)))
        wait_for(lambda: states(store)[1][0] == 512, "the tiles before the steps that a replay needs")
    finally:
        sealer.stop()
        engine.stop()
    assert (sealer.sealed, sealer.failed) == (2, 0)


def test_a_server_seals_and_stops(
    start: Start,
    pen: MakePen,
    make: Make,
    wait_for: Callable[[Callable[[], object], str], None],
) -> None:
    running = start()
    store = running.services.store
    one = pen(store, layers=[make.layer(0, "l")])
    for step in range(0, 700, 50):
        one.deliver(wire.Body(summaries=(make.summaries("grad", step, np.ones((50, 1))),)))
    wait_for(lambda: states(store)[1][0] == 256, "the first tile")
    running.stop()
    assert not any(thread.name == "floatscope-sealer" for thread in threading.enumerate())


@pytest.mark.engines("sqlite")
def test_the_wal_is_emptied_after_a_tile(store: Store, pen: MakePen, make: Make, tmp_path: Path) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    for step in range(0, 600, 50):
        one.deliver(wire.Body(summaries=(make.summaries("grad", step, np.ones((50, 1))),)))
    judge(store)
    assert Sealer(store, lost_after_s=60.0).seal_due() == 1
    # Only once the queue is empty; a job comes before that, and the next one after it.
    store.write(lambda _: None)
    store.write(lambda _: None)
    # The file by itself, without its WAL.
    alone = shutil.copy(tmp_path / "data" / "floatscope.db", tmp_path / "alone.db")
    with closing(sqlite3.connect(alone)) as connection:
        assert connection.execute("SELECT sealed FROM stream_state").fetchall() == [(256,)]


def test_while_sealing_lags_its_jobs_come_first_and_acknowledgements_late(
    store: Store, pen: MakePen, make: Make
) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    lags = [True]
    store.lagging = lambda: lags[0]
    answers: queue.Queue[wire.ServerMessage] = queue.Queue()
    body = wire.Body(summaries=(make.summaries("grad", 0, [[1.0]]),))
    store.submit(one.writer, wire.make_block(1, body), answers.put)

    def job(_: object) -> bool:
        lags[0] = False
        return answers.empty()

    assert store.write(job)
    assert isinstance(answers.get(timeout=60), wire.Ack)


def test_a_server_holds_ingest_back_for_its_rules(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    services = start().services
    assert not services.store.lagging()
    monkeypatch.setattr(services.alerts, "behind", lambda: True)
    assert services.store.lagging()


def test_ingest_waits_for_a_sealer_that_hangs_no_longer_than_a_moment(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store, layers=[make.layer(0, "l")])
    store.lagging = lambda: True
    assert isinstance(one.deliver(wire.Body(summaries=(make.summaries("grad", 0, [[1.0]]),))), wire.Ack)
