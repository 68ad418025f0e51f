"""A store that is in tiles, read without its server: the same answers, and nothing is written."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import Session, func, select

from floatscope import wire
from floatscope_server.database import database_of
from floatscope_server.jsontext import plain
from floatscope_server.models import HistTile, ScalarChunk, StreamState, TileRaw, WalFrame
from floatscope_server.offline import read_run, read_runs
from floatscope_server.query.heatmap import HeatQuestion, heat_map
from floatscope_server.query.histogram import layer_histogram
from floatscope_server.query.line import run_named
from floatscope_server.query.runs import run_list
from floatscope_server.query.series import scalar_series
from floatscope_server.query.show import show
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings
from floatscope_server.store.series_thread import SeriesThread
from tests.server.sealing import seal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from floatscope_server.store import Store
    from tests.databases import TestDatabase
    from tests.server.conftest import Make, MakePen
    from tests.server.programs import Command


def _train(store: Store, pen: MakePen, make: Make) -> None:
    """Two attempts, the second one from step 400 on."""
    rng = np.random.default_rng(0)
    layers = [make.layer(i, f"l{i}", ("grad", "fp16")) for i in range(3)]
    for steps in (range(600), range(400, 900)):
        one = pen(store, layers=layers)
        for first in range(steps.start, steps.stop, 50):
            histogram = wire.Histograms(
                kind="grad",
                first_step=first,
                steps=1,
                layers=np.array([0], "<u4").tobytes(),
                first=np.array([220], "<u2").tobytes(),
                length=np.array([2], "<u2").tobytes(),
                sampled=np.array([9], "<i8").tobytes(),
                counts=rng.integers(1, 9, 2).astype("<u8").tobytes(),
            )
            one.deliver(
                wire.Body(
                    summaries=(make.summaries("grad", first, rng.lognormal(size=(50, 3))),),
                    scalars=(make.scalars("loss", first, rng.normal(size=50).tolist()),),
                    histograms=(histogram,),
                )
            )


def _answers(session: Session) -> Any:  # noqa: ANN401 - JSON
    run, reader = run_named(session, "run"), TileReader(8 << 20)
    maps = [
        heat_map(session, reader, run, HeatQuestion(metric=metric, chosen=chosen, columns=columns)).content()
        for metric, chosen in (("headroom", "auto"), ("rms", "auto"), ("underflow", "e5m2"))
        for columns in (20, 2000)
    ]
    series = scalar_series(session, run, names=None, first=None, last=None, points=100)
    histogram = layer_histogram(session, run, layer="l0", kind="grad", first=None, last=None, columns=100)
    return plain([run_list(session), show(session, reader, run), maps, [s.arrays() for s in series], histogram])


def test_a_sealed_store_is_read_without_its_server(
    store: Store, pen: MakePen, make: Make, tmp_path: Path, database: TestDatabase
) -> None:
    _train(store, pen, make)
    seal(store, until=768)
    SeriesThread(store).seal(everything=True)
    with store.read() as session:
        for table in (TileRaw, ScalarChunk, HistTile, WalFrame):
            assert session.exec(select(func.count()).select_from(table)).one() > 0, table
        online = _answers(session)
        states = session.exec(select(StreamState.sealed, StreamState.epoch)).all()
    store.stop()
    settings = Settings(**database.of(tmp_path / "data"))
    before = _bytes(tmp_path / "data")
    reader = database_of(settings).reader()
    try:
        reader.check()
        with reader.session() as session:
            assert _answers(session) == online
            assert session.exec(select(StreamState.sealed, StreamState.epoch)).all() == states
    finally:
        reader.close()
    assert (read_runs(settings), read_run(settings, "run")) == (online[0], online[1])
    assert _bytes(tmp_path / "data") == before


@pytest.mark.engines("sqlite")
def test_show_reads_a_folder_that_is_sealed(
    store: Store, pen: MakePen, make: Make, tmp_path: Path, command: Callable[..., Command]
) -> None:
    _train(store, pen, make)
    seal(store, until=768)
    SeriesThread(store).seal(everything=True)
    with store.read() as session:
        online = _answers(session)[1]
    store.stop()
    before = _bytes(tmp_path / "data")
    status, out, err = command("show", "run", "--json", "--data", str(tmp_path / "data")).finish()
    assert (status, err) == (0, "")
    assert json.loads(out) == online
    status, out, _ = command("show", "run", "--data", str(tmp_path / "data")).finish()
    assert status == 0
    assert "3 layers" in out
    assert _bytes(tmp_path / "data") == before


def _bytes(folder: Path) -> dict[str, str]:
    """Digests of the files that hold a store. Readers of SQLite lock by a third one (``-shm``), which holds nothing."""
    found = sorted(folder.glob("floatscope.db*"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.suffix != ".db-shm"}
