"""A training's machine is judged while it starts; the server answers with the verdicts of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from sqlmodel import select

import floatscope
from floatscope_server.models import Run
from floatscope_server.query.doctor import doctor
from floatscope_server.store import Store, judged_hosts

if TYPE_CHECKING:
    from tests.server.conftest import MakePen, Running


def test_a_run_carries_the_verdicts_of_its_machine(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with floatscope.watch(model, optimizer, server=server.url, run="judged") as scope:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scope.step()
    config = server.json("/api/v1/runs/judged")["config"]
    verdicts = {verdict["item"]: verdict for verdict in config["doctor"]}
    assert verdicts["torch"]["value"].startswith(str(torch.__version__))
    assert verdicts["CUDA_LAUNCH_BLOCKING"]["status"] == "warning"
    assert verdicts["CUDA_LAUNCH_BLOCKING"]["fix"] == "unset CUDA_LAUNCH_BLOCKING"


def verdicts(value: str) -> list[dict[str, str]]:
    said = {"status": "ok", "why": "", "fix": ""}
    return [{"item": "driver", "value": value, **said}, {"item": "torch", "value": "2.13", **said}]


def test_each_host_has_its_verdicts_and_what_differs_is_named(store: Store, pen: MakePen) -> None:
    for rank, host in enumerate(["node-1", "node-1", "node-2"]):
        config = {"host": host, "doctor": verdicts("6.12" if host == "node-1" else "6.10")}
        pen(store, run="wide", rank=rank, world=3, config=config)
    found = judged(store, "wide")
    assert [(one["host"], one["rank"], one["attempt"]) for one in found["hosts"]] == [
        ("node-1", 0, 1),
        ("node-2", 2, 1),
    ]
    assert found["hosts"][1]["verdicts"] == verdicts("6.10")
    ok = {"status": "ok"}
    assert found["differ"] == [
        {"item": "driver", "hosts": {"node-1": ok | {"value": "6.12"}, "node-2": ok | {"value": "6.10"}}}
    ]


def test_a_restart_can_be_held_against_the_start_before_it(store: Store, pen: MakePen) -> None:
    for attempt in (1, 2):
        pen(store, run="again", attempt=attempt, config={"host": "node-1", "doctor": verdicts(f"6.{attempt}")})
    found = judged(store, "again")
    assert [(one["attempt"], one["verdicts"][0]["value"]) for one in found["hosts"]] == [(1, "6.1"), (2, "6.2")]
    assert found["differ"] == []


def test_hosts_are_bounded_and_the_newest_attempt_goes_first(
    store: Store, pen: MakePen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged_hosts, "MAX_HOSTS", 3)
    for attempt in (1, 2):
        for rank in range(4):
            config = {"host": f"node-{rank}", "doctor": verdicts("1")}
            pen(store, run="many", rank=rank, world=4, attempt=attempt, config=config)
    hosts = judged(store, "many")["hosts"]
    assert [(one["attempt"], one["host"]) for one in hosts] == [(2, "node-0"), (2, "node-1"), (2, "node-2")]


@pytest.mark.parametrize("found", ["?", [1], {"a": 1}, [{"item": {"deep": 1}, "value": "x" * 9999}]])
def test_verdicts_that_are_none_are_taken_as_text(store: Store, pen: MakePen, found: object) -> None:
    pen(store, run="odd", config={"host": "h" * 999, "doctor": found})
    for one in judged(store, "odd")["hosts"]:
        assert len(one["host"]) == 100
        assert all(len(text) <= 300 for verdict in one["verdicts"] for text in verdict.values())


def judged(store: Store, run: str) -> Any:  # noqa: ANN401 - as JSON
    with store.read() as session:
        return doctor(session, session.exec(select(Run).where(Run.name == run)).one())
