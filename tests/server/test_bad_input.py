"""What no well-behaved agent, clock or disk does, all the way from the wire to the answer."""

from __future__ import annotations

import argparse
import csv
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlmodel import Session, col, func, select

from floatscope import wire
from floatscope_server.blocks import MEDIA_TYPE
from floatscope_server.commands import export
from floatscope_server.models import LayerRow, ScalarSeries, StreamState, TileRaw
from floatscope_server.store import Store
from floatscope_server.store.keeper import Keeper
from floatscope_server.store.soundness import findings
from floatscope_server.tiles.codec import is_missing
from floatscope_server.tiles.statistics import Agg, Stat
from tests.server.keeping import kept
from tests.server.keeping.kept import TOP
from tests.server.tiles.frames import random_frame
from tests.server.tiles.sealing import deliver

if TYPE_CHECKING:
    from tests.server.bodies import Unpack
    from tests.server.conftest import Clock, Make, MakeAgent, MakePen, OpenStore, Running

_YEAR = 365 * 86_400.0
_FAR = 999_999_984

_HOSTILE = (
    "..",
    "../../etc/passwd",
    "a\nb\r\tc",
    "a\rb",
    "\x01\x1b[31m\x7f",
    "\u202egnp.exe\u2066",
    "x" * 512,
    "'; DROP TABLE layer; --",
    '"); DELETE FROM run',
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "a,b,c",
    "100%00",
    "%2e%2e%2f",
    "layer/1?x=2&y#z",
    "\U0001f4a9\u0301\ufffd",
    "{}[]\\",
)


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store(commit_interval_s=1e-4)


def _sound(store: Store) -> list[str]:
    reader = store.database.reader()
    try:
        return [finding.text for finding in findings(reader)]
    finally:
        reader.close()


def test_steps_that_jump_are_declared_or_cost_nothing(store: Store, pen: MakePen, make: Make) -> None:
    one = kept.fill(store, pen, make, steps=100)
    rng = np.random.default_rng(5)
    deliver(one, [random_frame(rng, 10**12, 5, range(kept.LAYERS))])
    (gap,) = kept.gaps(store)
    assert gap.reason == "step beyond 2^40 or more than 10^9 ahead of the newest"
    there = random_frame(rng, _FAR, 100, range(kept.LAYERS))
    deliver(one, [there])
    kept.seal(store)
    assert kept.raw_tiles(store) == [*range(7), *range(_FAR // 16, (_FAR + 92) // 16)]
    assert _sound(store) == []
    before = kept.window(store, 0, 99)
    whole = kept.window(store, 0, _FAR + 99, cell=1 << 29)
    shown = ~is_missing(whole.planes[TOP])
    assert np.flatnonzero(shown.any(axis=0)).tolist() == [0, 1]
    seen = np.where(there.observed, there.fields["absmax"], -np.inf)
    np.testing.assert_allclose(whole.planes[TOP][:, -1], seen.max(axis=0), rtol=1e-6)
    # Late for the present step, but not for where they belong: they are kept in the order of steps.
    deliver(one, [random_frame(rng, 100, 50, range(kept.LAYERS))])
    kept.seal(store)
    assert {gap.reason for gap in kept.gaps(store)[1:]} == {"more than 1024 steps late"}
    np.testing.assert_array_equal(kept.window(store, 0, 95).planes[TOP], before.planes[TOP][:, :96])
    kept.retain(store, raw_keep_steps=96)
    kept.keep(store)
    assert kept.raw_tiles(store)[0] == 6, "the last steps are those that are there"


def test_steps_that_go_back_and_repeat_are_told_apart_by_attempt(store: Store, pen: MakePen, make: Make) -> None:
    first = kept.fill(store, pen, make, steps=200)
    rng = np.random.default_rng(6)
    again = pen(store, layers=first.layers, attempt=2)
    for start in (100, 120, 100):
        deliver(again, [random_frame(rng, start, 60, range(kept.LAYERS))])
    kept.seal(store)
    assert _sound(store) == []
    with store.read() as session:
        assert sorted(session.exec(select(StreamState.attempt))) == [1, 2]
    assert kept.raw_tiles(store, attempt=2)[0] == 6
    shown = kept.window(store, 0, 159)
    assert shown.planes[TOP].shape == (kept.LAYERS, 160)


def test_a_server_clock_that_jumps_ahead_and_back_loses_nothing(
    store: Store, pen: MakePen, make: Make, clock: Clock
) -> None:
    one = kept.fill(store, pen, make, steps=200)
    steady = [0.0]
    keeper = Keeper(store, monotonic=lambda: steady[0])
    kept.keep(store, keeper)
    before = kept.window(store, 0, 191)
    for jump in (10 * _YEAR, -20 * _YEAR, 10 * _YEAR):
        clock.now += jump
        steady[0] += 4000.0
        store.tick()
        deliver(one, [random_frame(np.random.default_rng(7), 200, 2, range(kept.LAYERS))])
        kept.seal(store)
        kept.keep(store, keeper)
    assert kept.raw_tiles(store) == list(range(12))
    np.testing.assert_array_equal(kept.window(store, 0, 191).planes[TOP], before.planes[TOP])
    with store.read() as session:
        assert session.exec(select(func.count()).select_from(TileRaw)).one() > 0


def test_a_flipped_byte_never_fails_a_request_and_is_mended(
    server: Running, agent: MakeAgent, make: Make, wait_for: Callable[..., None]
) -> None:
    one = agent(run="run", layers=[make.layer(0, "l0"), make.layer(1, "l1")])
    for first in range(0, 1200, 50):
        assert isinstance(
            one.deliver(wire.Body(summaries=(make.summaries("grad", first, [[1.0, 2.0]] * 50),))), wire.Ack
        )
    store = server.services.store
    wait_for(lambda: kept.raw_tiles(store), "a sealed tile")
    for stat, agg in ((Stat.ABSMAX, Agg.VALUE), (Stat.COUNT, Agg.VALUE), (Stat.RMS, Agg.VALUE)):
        kept.flip(store, TileRaw, col(TileRaw.idx) == 0, col(TileRaw.stat) == int(stat), col(TileRaw.agg) == int(agg))
    damaged = 0
    for path in (
        "heatmap?metric=absmax&from=0&to=99&columns=100",
        "heatmap?metric=headroom&from=0&to=99&columns=100&format=bf16",
        "heatmap?metric=rms&from=0&to=99&columns=100",
        "summaries?kind=grad&step=5",
        "layers/l1/series?from=0&to=50",
        "latest",
    ):
        reply = server.get(f"/api/v1/runs/run/{path}")
        assert reply.status == 200, (path, reply.body)
        damaged += reply.json.get("damaged", 0)
    assert damaged
    wait_for(lambda: len(kept.gaps(store)) >= 2, "the gaps")
    assert all(gap["reason"].startswith("a stored tile was damaged") for gap in server.json("/api/v1/runs/run")["gaps"])
    heat = server.json("/api/v1/runs/run/heatmap?metric=absmax&from=0&to=99&columns=100")
    assert heat["damaged"] == 0


def test_hostile_names_come_back_as_they_are(
    server: Running,
    agent: MakeAgent,
    make: Make,
    wait_for: Callable[..., None],
    unpack: Unpack,
    tmp_path: Path,
) -> None:
    layers = [make.layer(i, name) for i, name in enumerate(_HOSTILE)]
    one = agent(run="run", layers=layers)
    values = np.arange(1.0, 1.0 + len(layers))
    for first in range(0, 1200, 50):
        scalars = tuple(make.scalars(name, first, [float(first)]) for name in _HOSTILE)
        answer = one.deliver(
            wire.Body(summaries=(make.summaries("grad", first, np.tile(values, (50, 1))),), scalars=scalars)
        )
        assert isinstance(answer, wire.Ack), answer
    wait_for(lambda: len(kept.raw_tiles(server.services.store)) >= 2, "sealed tiles")
    run = server.json("/api/v1/runs/run")
    assert [layer["name"] for layer in run["layers"]] == list(_HOSTILE)
    # Names of scalars are for people to type.
    odd = {name for name in _HOSTILE if not name.isprintable() or len(name) > 200}
    assert set(run["scalars"]) == set(_HOSTILE) - odd
    assert [gap["reason"] for gap in run["gaps"]] == ["scalar name longer than 200 characters, empty or not printable"]
    heat = server.json("/api/v1/runs/run/heatmap?metric=absmax&columns=20")
    assert [layer["name"] for layer in heat["layers"]] == list(_HOSTILE)
    block = server.get("/api/v1/runs/run/heatmap?metric=absmax&columns=20", accept=MEDIA_TYPE)
    meta, arrays = unpack(block.body)
    assert [layer["name"] for layer in meta["layers"]] == list(_HOSTILE)
    np.testing.assert_allclose(arrays["values"][:, 0], values, rtol=1e-3)
    for place, name in enumerate(_HOSTILE):
        quoted = urllib.parse.quote(name, safe="")
        series = server.json(f"/api/v1/runs/run/series?layer={quoted}&metrics=absmax&to=99")
        assert series["absmax"]["max"][0] == pytest.approx(values[place], rel=1e-3)
        if "," not in name and name not in odd:
            found = server.json(f"/api/v1/runs/run/scalars?names={quoted}")
            assert [one["name"] for one in found] == [name]
    assert _sound(server.services.store) == []
    target = tmp_path / "run.csv"
    asked = ("--server", server.url, "--kinds", "grad", "--metrics", "absmax", "--until", "1")
    parser = argparse.ArgumentParser()
    export.configure(parser)
    assert export.run(parser.parse_args(["run", "--to", str(target), *asked])) == 0
    with target.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == 2 * list(_HOSTILE)
    assert list(tmp_path.parent.rglob("passwd")) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_million_names_are_capped_and_declared(store: Store, pen: MakePen, make: Make) -> None:
    one = pen(store)
    before = _resident()
    for start in range(0, 1_000_000, 10_000):
        layers = tuple(make.layer(i, f"layer.{i}") for i in range(start, start + 10_000))
        assert isinstance(one.deliver(wire.Body(layers=layers)), wire.Ack)
    after_layers = _resident()
    for start in range(0, 1_000_000, 4000):
        scalars = tuple(make.scalars(f"scalar.{i}", 0, [1.0]) for i in range(start, start + 4000))
        assert isinstance(one.deliver(wire.Body(first_step=0, steps=1, scalars=scalars)), wire.Ack)
    after = _resident()
    with store.read() as session:
        assert _rows(session, LayerRow) == store.settings.max_layers
        assert _rows(session, ScalarSeries) == 20_000
    declared = {gap.reason: gap.count for gap in kept.gaps(store)}
    assert declared["more than 50000 layers in one run"] == 950_000
    assert declared["more than 20000 scalar series in one attempt"] == 980_000
    assert max(after_layers, after) - before < 200 << 20


def _rows(session: Session, table: type[LayerRow | ScalarSeries]) -> int:
    return int(session.exec(select(func.count()).select_from(table)).one())


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
