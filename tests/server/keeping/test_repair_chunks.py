"""Damaged pieces of series and of histograms: found, dropped and declared, the rest kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import col, select

from floatscope import wire
from floatscope_server.database import StoreError
from floatscope_server.models import HistTile, ScalarChunk, Stream, StreamState
from floatscope_server.store import Store
from floatscope_server.store.checking import check, repair
from floatscope_server.store.series_thread import SeriesThread
from tests.server.keeping import kept

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakePen, OpenStore


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _fill(store: Store, pen: MakePen, make: Make) -> None:
    layers = 16
    one = pen(store, layers=[make.layer(i, f"l{i}") for i in range(layers)])
    for first in range(0, 1000, 250):
        histogram = wire.Histograms(
            kind="grad",
            first_step=first,
            steps=1,
            layers=np.arange(layers, dtype="<u4").tobytes(),
            first=np.full(layers, 200, "<u2").tobytes(),
            length=np.ones(layers, "<u2").tobytes(),
            counts=np.ones(layers, "<u8").tobytes(),
            sampled=np.full(layers, 9, "<i8").tobytes(),
        )
        body = wire.Body(histograms=(histogram,), scalars=(make.scalars("loss", first, np.arange(250.0).tolist()),))
        assert isinstance(one.deliver(body), wire.Ack)
    SeriesThread(store).seal(everything=True)


def _epochs(store: Store) -> dict[str, int]:
    of_state = col(Stream.id) == col(StreamState.stream_id)
    with store.read() as session:
        return dict(session.exec(select(Stream.name, StreamState.epoch).join(StreamState, of_state)).all())


@pytest.mark.parametrize(("table", "level"), [(ScalarChunk, 0), (ScalarChunk, 1), (HistTile, 0)])
def test_it_is_dropped_and_said_so(store: Store, pen: MakePen, make: Make, table: Any, level: int) -> None:  # noqa: ANN401
    _fill(store, pen, make)
    said: list[str] = []
    assert check(store.database, said.append) == 0
    kept.flip(store, table, col(table.level) == level)
    said.clear()
    assert check(store.database, said.append) == 1
    (line,) = said
    assert f"level {level}" in line
    assert ("'loss'" in line) == (table is ScalarChunk)
    with pytest.raises(StoreError):
        repair(store.database, said.append)
    before = _epochs(store)
    store.stop()
    said.clear()
    assert repair(store.database, said.append) == 0
    assert said[0].endswith("dropped, and declared as a gap")
    store.start()
    (gap,) = kept.gaps(store)
    assert gap.reason.startswith("a stored piece of")
    stream = "scalar" if table is ScalarChunk else "hist/grad"
    assert [name for name, epoch in _epochs(store).items() if epoch != before[name]] == [stream], "answers made of it"
    assert check(store.database, said.append) == 0
