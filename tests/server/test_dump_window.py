"""What a flight recorder held, as heat map, series and histogram: every step of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.blocks import MEDIA_TYPE
from floatscope_server.models import DumpPart
from floatscope_server.store.soundness import findings

if TYPE_CHECKING:
    from tests.server.bodies import Unpack
    from tests.server.conftest import Make, MakeAgent, Running

_STEPS = 300
_LAYERS = 70


def _dump(make: Make, values: np.ndarray[Any, Any], steps: Sequence[int], part: int = 0, parts: int = 1) -> wire.Dump:
    """``values`` [steps, layers], one body a step."""
    every = np.arange(_LAYERS)
    bodies = tuple(
        wire.encode(
            wire.Body(
                first_step=step,
                steps=1,
                summaries=(make.summaries("grad", step, [row.tolist()]),),
                histograms=(
                    wire.Histograms(
                        kind="grad",
                        first_step=step,
                        steps=1,
                        layers=every.astype("<u4").tobytes(),
                        first=np.full(_LAYERS, 250, "<u2").tobytes(),
                        length=np.ones(_LAYERS, "<u2").tobytes(),
                        sampled=np.full(_LAYERS, 9, "<i8").tobytes(),
                        counts=(every + step).astype("<u8").tobytes(),
                    ),
                ),
            )
        )
        for step, row in zip(steps, values, strict=True)
    )
    return wire.Dump(
        id="alert-1",
        kind="nonfinite",
        alert=1,
        step=int(steps[-1]),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        part=part,
        parts=parts,
        bodies=bodies,
    )


def _values(seed: int, steps: int = _STEPS) -> np.ndarray[Any, Any]:
    return np.exp2(np.random.default_rng(seed).normal(0, 4, (steps, _LAYERS))).astype(np.float32)


@pytest.fixture
def dumped(server: Running, agent: MakeAgent, make: Make) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The values of two ranks [steps, layers], from step 1000 on."""
    found = _values(0), _values(1)
    layers = [make.layer(i, f"l{i}") for i in range(_LAYERS)]
    for rank, values in enumerate(found):
        one = agent(run="run", rank=rank, world=2, layers=layers)
        for part in range(3):
            piece = _dump(make, values[100 * part :][:100], range(1000 + 100 * part, 1100 + 100 * part), part, 3)
            answer = one.deliver(wire.Body(dump=piece))
            assert isinstance(answer, wire.Ack), answer
    return found


def test_a_heat_map_shows_every_step_of_a_rank_or_the_worst_of_all(
    server: Running, dumped: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], unpack: Unpack
) -> None:
    ask = "/api/v1/runs/run/heatmap?metric=absmax&dump=alert-1&columns=4000"
    heat = server.json(f"{ask}&rank=1")
    assert (heat["cell"], heat["resolution"], heat["first_step"], heat["last_step"]) == (1, 1, 1000, 1299)
    np.testing.assert_array_equal(np.array(heat["values"], np.float32), dumped[1].T)
    meta, arrays = unpack(server.get(ask, accept=MEDIA_TYPE).body)
    assert len(meta["layers"]) == _LAYERS
    np.testing.assert_array_equal(arrays["values"], np.maximum(*dumped).T)
    part = server.json(f"{ask}&rank=0&from=1010&to=1019&layers=l69,l3")
    np.testing.assert_array_equal(np.array(part["values"], np.float32), dumped[0][10:20, [3, 69]].T)


def test_fewer_columns_keep_the_spikes(
    server: Running, dumped: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
) -> None:
    heat = server.json("/api/v1/runs/run/heatmap?metric=absmax&dump=alert-1&rank=0&columns=50")
    cell = heat["cell"]
    assert cell == 8
    for column, start in enumerate(heat["columns"]):
        low, high = max(start - 1000, 0), min(start + cell - 1000, _STEPS)
        shown = [row[column] for row in heat["values"]]
        np.testing.assert_array_equal(np.array(shown, np.float32), dumped[0][low:high].max(axis=0))


def test_a_series_and_a_histogram(server: Running, dumped: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> None:
    series = server.json("/api/v1/runs/run/series?layer=l65&metrics=absmax&dump=alert-1&rank=0")
    assert series["steps"] == list(range(1000, 1300))
    np.testing.assert_array_equal(np.array(series["absmax"]["values"], np.float32), dumped[0][:, 65])
    found = server.json("/api/v1/runs/run/histogram?layer=l65&dump=alert-1&rank=1&from=1005&to=1009")
    assert [(c["first_step"], c["counts"]) for c in found["columns"]] == [(s, [65 + s]) for s in range(1005, 1010)]
    both = server.json("/api/v1/runs/run/layers/l65/histogram?dump=alert-1&columns=10")
    assert both["cell"] == 32
    # Ranks that do not say how their tensors go together: the lowest.
    assert sum(sum(c["counts"]) for c in both["columns"]) == sum(65 + s for s in range(1000, 1300))


@pytest.mark.engines("sqlite")
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("dump=none", 404, "unknown_dump"),
        ("dump=alert-1&rank=7", 404, "unknown_dump"),
        ("rank=1", 422, "invalid"),
        ("dump=alert-1&rank=-1", 422, "invalid"),
        ("dump=alert-1&kind=no", 422, "invalid"),
    ],
)
@pytest.mark.usefixtures("dumped")
def test_what_is_not_there_is_said(server: Running, query: str, status: int, code: str) -> None:
    for path in ("heatmap", "layers/l1/series", "layers/l1/histogram"):
        reply = server.get(f"/api/v1/runs/run/{path}?{query}")
        assert (reply.status, reply.json["error"]["code"]) == (status, code), path


@pytest.mark.engines("sqlite")
@pytest.mark.usefixtures("dumped")
def test_a_kind_that_it_does_not_hold_is_empty(server: Running) -> None:
    assert server.json("/api/v1/runs/run/heatmap?kind=act&dump=alert-1")["values"] == []
    assert server.json("/api/v1/runs/run/histogram?layer=l1&kind=act&dump=alert-1")["columns"] == []


@pytest.mark.engines("sqlite")
def test_steps_far_apart_take_no_room_and_a_piece_that_comes_later_is_shown(
    server: Running, agent: MakeAgent, make: Make
) -> None:
    one = agent(run="run", layers=[make.layer(i, f"l{i}") for i in range(_LAYERS)])
    values = _values(2, 2)
    pieces = _dump(make, values[:1], [5], 0, 2), _dump(make, values[1:], [900_000_000], 1, 2)
    ask = "/api/v1/runs/run/heatmap?metric=absmax&dump=alert-1&columns=100"
    for number, piece in enumerate(pieces):
        assert isinstance(one.deliver(wire.Body(dump=piece)), wire.Ack)
        heat = server.json(ask)
        shown = np.array([[np.nan if cell is None else cell for cell in row] for row in heat["values"]], np.float32)
        there = ~np.isnan(shown).all(axis=0)
        assert there.sum() == number + 1
        np.testing.assert_array_equal(shown[:, there], values[: number + 1].T)


def test_a_damaged_piece_is_left_out_and_said_so(
    server: Running, dumped: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
) -> None:
    def damage(session: Session) -> None:
        part = session.exec(select(DumpPart).where(DumpPart.rank == 0, DumpPart.part == 1)).one()
        data = bytearray(part.data)
        data[len(data) // 2] ^= 0x10
        part.data = bytes(data)
        session.add(part)

    store = server.services.store
    store.write(damage)
    first, second = server.json("/api/v1/runs/run/dumps/alert-1?kind=grad")["ranks"]
    assert (first["complete"], second["complete"]) == (False, True)
    assert [part["first_step"] for part in first["summaries"]] == [*range(1000, 1100), *range(1200, 1300)]
    shown = server.json("/api/v1/runs/run/heatmap?kind=grad&metric=absmax&dump=alert-1&rank=0")
    assert [value is None for value in shown["values"][0]] == [1100 <= step < 1200 for step in shown["columns"]]
    reader = store.database.reader()
    assert [finding.text.split(":")[0] for finding in findings(reader)] == [
        "piece 1 of the dump alert-1, rank 0, run 1"
    ]
    reader.close()
