"""Names that hurt: sealed, read by a server that was started anew, and exported in every format."""

from __future__ import annotations

import argparse
import csv
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.commands import export
from floatscope_server.query.heatmap import HeatQuestion, heat_map
from floatscope_server.query.line import run_named
from floatscope_server.query.window import TileReader
from tests.needs import needs
from tests.server.keeping import kept

if TYPE_CHECKING:
    from pathlib import Path

    from floatscope_server.store import Store
    from tests.server.conftest import Make, MakePen, OpenStore

_KEPT = (
    "\u05e9\u05dc\u05d5\u05dd.\u0645\u0631\u062d\u0628\u0627",
    "\u202egnp.exe\u2066",
    "<img src=x onerror=alert(1)>",
    "[bold](http://example.com)`x`",
    '=1+1,"a"',
    "a\r\nb",
    "x" * 512,
)
_LEFT_OUT = ("a\0b", "y" * 10_000)
_STEPS = 640


@pytest.fixture
def reopened(open_store: OpenStore, pen: MakePen, make: Make) -> Store:
    """A store that was closed after tiles of these layers had been sealed."""
    first = open_store(commit_interval_s=1e-4)
    names = (*_LEFT_OUT, *_KEPT)
    one = pen(first, layers=[make.layer(index, name) for index, name in enumerate(names)])
    values = np.tile(2.0 ** np.arange(len(names)), (_STEPS // 10, 1))
    for start in range(0, _STEPS, _STEPS // 10):
        scalars = tuple(make.scalars(name, start, [1.0] * (_STEPS // 10)) for name in names)
        answer = one.deliver(wire.Body(summaries=(make.summaries("grad", start, values),), scalars=scalars))
        assert isinstance(answer, wire.Ack), answer
    kept.seal(first)
    assert kept.raw_tiles(first)
    first.stop()
    return open_store(commit_interval_s=1e-4)


def _exported(store: Store, monkeypatch: pytest.MonkeyPatch, target: Path) -> int:
    where: tuple[str, ...] = ("--data", str(store.settings.data))
    if store.settings.db is not None:
        where = ()
        monkeypatch.setenv("FLOATSCOPE_DB", store.settings.db)
    parser = argparse.ArgumentParser()
    export.configure(parser)
    chosen = ("--kinds", "grad", "--metrics", "absmax", "--until", "1")
    return export.run(parser.parse_args(["run", *where, "--to", str(target), *chosen]))


def test_they_are_the_same_after_a_restart(reopened: Store) -> None:
    with reopened.read() as session:
        run = run_named(session, "run")
        found = heat_map(session, TileReader(1 << 24), run, HeatQuestion(metric="absmax", columns=10))
    assert [layer.name for layer in found.layers] == list(_KEPT)
    np.testing.assert_array_equal(found.values[:, 0], 2.0 ** np.arange(2, 2 + len(_KEPT)))
    reasons = {gap.reason for gap in kept.gaps(reopened)}
    assert "layer with a NUL character" in reasons
    assert "layer name longer than 512 characters or empty" in reasons
    assert "summary of a layer that was never named" in reasons


def test_csv(reopened: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "run.csv"
    assert _exported(reopened, monkeypatch, target) == 0
    with target.open(newline="", encoding="utf-8") as file:
        assert [row["layer"] for row in csv.DictReader(file)] == 2 * list(_KEPT)


def test_parquet(reopened: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs(find_spec("pyarrow"), "pyarrow")
    target = tmp_path / "run.parquet"
    assert _exported(reopened, monkeypatch, target) == 0
    table: Any = import_module("pyarrow.parquet").read_table(target)
    assert table.column("layer").to_pylist() == 2 * list(_KEPT)


def test_tensorboard(reopened: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs(find_spec("tensorboardX") and find_spec("tensorboard"), "tensorboardX and tensorboard")
    folder = tmp_path / "events"
    assert _exported(reopened, monkeypatch, folder) == 0
    reader: Any = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()["scalars"]
    assert [tag for tag in tags if tag.startswith("grad/absmax/")] == [f"grad/absmax/{name}" for name in _KEPT]
    assert [event.step for event in found.Scalars(f"grad/absmax/{_KEPT[0]}")] == [0, 1]
