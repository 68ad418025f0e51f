"""A sharded training over two processes, seen through the server's HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.distributed_ranks import EVERY, STEPS, finish, plain, start_ranks, train

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Running

EXACT = ("count", "zeros", "nans", "infs")


def layers_of(server: Running, run: str, kind: str, step: int) -> dict[str, dict[str, Any]]:
    answer = server.json(f"/api/v1/runs/{run}/summaries?kind={kind}&step={step}")
    assert answer["complete"]
    return {
        layer["layer"]: layer["merged"] if layer["merged"] is not None else layer["ranks"]["0"]
        for layer in answer["layers"]
    }


def test_a_sharded_training_reads_like_a_plain_one_and_is_incomplete_without_a_rank(
    server: Running, tmp_path: Path
) -> None:
    runs = ["to_server:sharded:-1", "to_server:half:1"]
    finish(start_ranks(tmp_path, {2: runs}, FLOATSCOPE_SERVER=server.url))
    train(plain(), run="plain", server=server.url, config=EVERY)
    assert_like_plain(server)
    assert_incomplete(server)


def assert_like_plain(server: Running) -> None:
    for kind in ("grad", "weight", "act"):
        for step in range(STEPS):
            sharded, single = (layers_of(server, run, kind, step) for run in ("sharded", "plain"))
            assert sharded.keys() == single.keys()
            for name, row in single.items():
                assert [sharded[name][field] for field in EXACT] == [row[field] for field in EXACT]
                for field in ("absmax", "absmin", "sumsq"):
                    assert sharded[name][field] == pytest.approx(row[field], rel=1e-6)
    norms = [server.json(f"/api/v1/runs/{run}/scalars?names=grad_norm") for run in ("sharded", "plain")]
    assert norms[0][0]["values"] == pytest.approx(norms[1][0]["values"], rel=1e-6)
    assert norms[0][0]["steps"] == list(range(STEPS))
    columns = [
        server.json(f"/api/v1/runs/{run}/layers/up/histogram?kind=grad")["columns"] for run in ("sharded", "plain")
    ]
    elements = [sum(sum(column["counts"]) for column in of_run) for of_run in columns]
    assert elements[0] == elements[1] > 0
    shown = server.json("/api/v1/runs/sharded")
    assert shown["complete_to"] == STEPS - 1
    assert shown["ranks_disagree"] == []


def assert_incomplete(server: Running) -> None:
    shown = server.json("/api/v1/runs/half")
    assert (shown["steps"], shown["complete_to"], shown["missing_ranks"]) == (STEPS, None, [1])
    answer = server.json("/api/v1/runs/half/summaries?kind=grad&step=0")
    assert (answer["complete"], answer["missing_ranks"]) == (False, [1])
    assert server.json("/api/v1/runs/half/scalars?names=grad_norm") == [], "half of it is not the norm"
    columns = server.json("/api/v1/runs/half/layers/up/histogram?kind=grad")["columns"]
    assert columns
    assert not any(column["complete"] for column in columns)
