"""A training, its agent and a server: what the server says reaches the training, and what comes of it is kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from sqlmodel import col, select
from torch import nn
from torch.nn import functional

import floatscope
from floatscope import Config
from floatscope._governor import KINDS
from floatscope._sender import Sender
from floatscope_server.models import StepEvent

pytestmark = [pytest.mark.engines("sqlite"), pytest.mark.timeout(900)]

if TYPE_CHECKING:
    from tests.server.conftest import Reply, Running
    from tests.server.programs import Command

Http = Callable[..., "Reply"]
STEP_S = 0.002


class Training:
    """A small model that is trained step by step. A ``factor`` of NaN makes the loss and all gradients NaN; with
    ``overflows`` a sum in the last layer is too large for float32, though nothing that goes into it is, and the update
    is left out, as by careful people."""

    def __init__(self, server: Running, **options: Any) -> None:  # noqa: ANN401
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.inputs, self.labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
        self.steps = 0
        self.factor = 1.0
        self.overflows = False
        last = self.model[2]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(20)
        last.register_forward_pre_hook(self._enlarge)
        self.scope = floatscope.watch(self.model, self.optimizer, run="run", server=server.url, **options)

    def _enlarge(self, module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (args[0] * (2e38 / args[0].abs().max()),) if self.overflows else args

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.inputs), self.labels) * self.factor
        loss.backward()  # type: ignore[no-untyped-call]
        if loss.isfinite() or not self.overflows:
            self.optimizer.step()
        self.scope.step(loss=loss)
        self.steps += 1
        sender = self.scope._sink
        assert isinstance(sender, Sender)
        while sender.stats().waiting > 256:  # on a busy machine it would run away from what carries its records
            time.sleep(STEP_S)
        time.sleep(STEP_S)  # a training takes time; nothing is waited for

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + 200
        while not condition():
            assert time.monotonic() < end, f"trained in vain for {what}"
            self.step()


@pytest.fixture
def train(server: Running) -> Iterator[Callable[..., Training]]:
    trainings: list[Training] = []

    def begin(**options: Any) -> Training:  # noqa: ANN401
        trainings.append(Training(server, **options))
        return trainings[-1]

    yield begin
    for training in trainings:
        training.scope.close()


def _events(server: Running, kind: str) -> list[StepEvent]:
    with server.services.store.read() as session:
        return list(session.exec(select(StepEvent).where(StepEvent.kind == kind).order_by(col(StepEvent.id))))


def _connected(server: Running) -> bool:
    return bool(server.json("/api/v1/runs"))


def test_a_loss_that_is_not_a_number_calls_the_user_back(server: Running, train: Callable[..., Training]) -> None:
    heard: list[floatscope.Alert] = []
    training = train(on_alert=heard.append)
    training.until(lambda: _connected(server), "a connection")
    broken = training.steps
    training.factor = math.nan
    training.until(lambda: heard, "an alert")
    alert = heard[0]
    assert (alert.kind, alert.severity, alert.step, alert.rank) == ("nonfinite", "critical", broken, 0)
    assert alert.message
    # Half a second: packed and sent within 250 ms, judged and stored at once, told, and heard at the next step.
    assert training.steps - broken < 5.0 / STEP_S
    training.until(lambda: _events(server, "action"), "the record of it")
    (event, *_) = _events(server, "action")
    assert event.detail == {"alert": alert.id, "kind": "nonfinite", "ok": True}
    assert [shown["id"] for shown in server.json("/api/v1/runs/run/alerts")][: len(heard)] == [a.id for a in heard]


def test_what_the_users_code_raises_ends_nothing(
    server: Running, train: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    def react(alert: floatscope.Alert) -> None:
        raise LookupError(f"no checkpoint for {alert.kind}")

    training = train(on_alert=react)
    training.until(lambda: _connected(server), "a connection")
    training.factor = math.inf
    training.until(lambda: _events(server, "action"), "an action")
    (event, *_) = _events(server, "action")
    assert (event.detail["ok"], event.detail["error"]) == (False, "LookupError: no checkpoint for nonfinite")
    assert "training goes on" in caplog.text


def test_a_closer_look_reads_everything_for_so_many_steps(
    server: Running, train: Callable[..., Training], http: Http
) -> None:
    training = train(activations_every=1000, weights_every=1000, histograms_every=1000, overhead_budget=0)
    training.until(lambda: _connected(server), "a connection")
    reply = http(
        f"{server.url}/api/v1/runs/run/focus",
        method="POST",
        body=json.dumps({"steps": 20}).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert reply.json == {"agents": 1, "steps": 20}
    training.until(lambda: len(_events(server, "focus")) == 2, "the end of the focus")
    begin, end = _events(server, "focus")
    assert begin.detail == {"state": "begin", "steps": 20}
    assert end.detail == {"state": "end"}
    assert end.step - begin.step == 20
    wanted = list(range(begin.step + 1, end.step + 1))
    for kind in ("act", "act_in", "act_grad", "weight"):
        heat = server.json(f"/api/v1/runs/run/heatmap?kind={kind}&metric=absmax&from=1&layers=0")
        seen = [step for step, value in zip(heat["columns"], heat["values"][0], strict=True) if value is not None]
        assert [step for step in seen if step % 1000] == wanted, kind
    columns = server.json("/api/v1/runs/run/layers/0/histogram?kind=grad")["columns"]
    elements = sum(parameter.numel() for parameter in training.model[0].parameters())
    due = range(0, training.steps, 1000)
    assert sum(column["sampled"] for column in columns) == (20 + len(due)) * elements


def test_what_overflows_now_and_then_is_named_the_second_time(server: Running, train: Callable[..., Training]) -> None:
    def overflow() -> int:
        if training.steps % 10 == 0:
            training.step()  # outputs are read in it
        training.overflows = True
        training.step()
        training.overflows = False
        return training.steps - 1

    def alerts() -> list[dict[str, Any]]:
        found = [alert for alert in server.json("/api/v1/runs/run/alerts") if alert["kind"] == "nonfinite"]
        return sorted(found, key=lambda alert: alert["first_step"])

    training = train()
    training.until(lambda: _connected(server) and training.steps > 30, "a connection")
    first = overflow()
    training.until(lambda: _events(server, "focus"), "a closer look")
    begin = _events(server, "focus")[0]
    assert begin.detail["because"] == f"step {first} was not finite"
    training.until(lambda: training.steps > begin.step + 200, "200 steps")
    second = overflow()
    training.until(lambda: len(alerts()) == 2, "the second alert")
    early, late = alerts()
    assert (early["first_step"], early["layer"]) == (first, None)
    assert (late["first_step"], late["layer"], late["rank"]) == (second, "2", 0)
    assert late["detail"]["producer"] == {
        "after": "0",
        "first": "2",
        "kind": "act",
        "alone": True,
        "in": None,
        "how": "module",
        "order": 1,
    }
    assert "It came from 2: its inputs and parameters were finite, its output was not." in late["message"]
    # It has shown what it was for.
    training.until(lambda: len(_events(server, "focus")) > 1, "the end of the look")
    end = _events(server, "focus")[1]
    assert end.detail == {"state": "end"}
    assert end.step - begin.step < 512
    training.until(lambda: training.steps > end.step + 50, "50 steps")
    heat = server.json("/api/v1/runs/run/heatmap?kind=act&metric=absmax&from=1&layers=0")
    seen = {step for step, value in zip(heat["columns"], heat["values"][0], strict=True) if value is not None}
    assert set(range(begin.step + 1, end.step + 1)) <= seen
    assert not {step for step in seen if step > end.step and step % 10}


def test_weights_that_are_spoilt_are_not_looked_at_for_ever(server: Running, train: Callable[..., Training]) -> None:
    training = train()
    training.until(lambda: _connected(server) and training.steps > 30, "a connection")
    training.step()
    broken, training.factor = training.steps, math.nan
    training.until(lambda: len(_events(server, "focus")) == 2, "a closer look and its end")
    begin, end = _events(server, "focus")
    assert (begin.detail["state"], end.detail["state"]) == ("begin", "end")

    def parameters() -> dict[str, Any] | None:
        (alert,) = [alert for alert in server.json("/api/v1/runs/run/alerts") if alert["kind"] == "nonfinite"]
        found: dict[str, Any] | None = alert["detail"].get("parameters")
        return found

    training.until(parameters, "what it showed")
    found = parameters()
    assert found is not None
    assert found["layer"] == "0"
    assert broken < found["step"]
    training.until(lambda: training.steps > end.step + 50, "50 steps")
    assert len(_events(server, "focus")) == 2


def test_what_preceded_the_end_is_kept(server: Running, train: Callable[..., Training]) -> None:
    training = train(overhead_budget=0)
    training.until(lambda: _connected(server) and training.steps > 70, "a connection")
    broken = training.steps
    training.factor = math.nan
    training.until(lambda: server.json("/api/v1/runs/run/dumps"), "a dump")
    (listed,) = server.json("/api/v1/runs/run/dumps")
    assert (listed["id"], listed["kind"], listed["complete"]) == (f"rank0-step{broken}", "nonfinite", True)
    assert (listed["first_step"], listed["last_step"], listed["step"]) == (broken - 63, broken, broken)
    (rank,) = server.json(f"/api/v1/runs/run/dumps/{listed['id']}")["ranks"]
    assert [step for step, _ in rank["scalars"]["loss"]] == list(range(broken - 63, broken + 1))
    assert rank["scalars"]["loss"][-1] == [broken, "NaN"]
    gradients = [part for part in rank["summaries"] if part["kind"] == "grad"]
    assert sum(part["steps"] for part in gradients) == 64
    assert {layer for part in gradients for layer in part["layers"]} == {"0", "2"}
    assert all(part["steps"] == 1 for part in rank["histograms"])
    # The server's own alert of the same kind finds it frozen already.
    training.until(lambda: server.json("/api/v1/runs/run/alerts"), "the alert")
    assert len(server.json("/api/v1/runs/run/dumps")) == 1


def test_a_critical_alert_of_the_server_freezes_the_recorder(server: Running, train: Callable[..., Training]) -> None:
    training = train(overhead_budget=0)
    training.until(lambda: _connected(server) and training.steps > 30, "a connection")
    training.factor = 20.0
    training.until(lambda: server.json("/api/v1/runs/run/dumps"), "a dump")
    (listed, *_) = server.json("/api/v1/runs/run/dumps")
    alert = next(a for a in server.json("/api/v1/runs/run/alerts") if a["id"] == listed["alert"])
    assert (listed["id"], listed["kind"]) == (f"alert-{alert['id']}", alert["kind"])
    assert alert["severity"] == "critical"
    assert listed["first_step"] <= alert["first_step"] <= listed["last_step"]


def test_a_small_model_is_read_less_often_and_says_so(server: Running, train: Callable[..., Training]) -> None:
    training = train()
    training.until(lambda: _events(server, "sampling"), "a decision")
    event = _events(server, "sampling")[0]
    assert event.detail["kind"] in set(KINDS)
    assert "may cost 1 %" in str(event.detail["because"])
    sender = training.scope._sink
    assert isinstance(sender, Sender)
    training.until(lambda: sender._beat().cost is not None, "its cost")
    cost = sender._beat().cost
    assert cost is not None
    assert cost.budget == 0.01
    assert cost.every[str(event.detail["kind"])] >= int(str(event.detail["every"]))


def test_a_short_run_shows_what_it_cost(
    server: Running, train: Callable[..., Training], command: Callable[..., Command], wait_for: Callable[..., None]
) -> None:
    training = train(overhead_budget=1e-4)
    training.until(lambda: training.steps >= 60, "steps")
    training.scope.close()
    wait_for(lambda: server.json("/api/v1/runs/run")["state"] == "finished", "the goodbye")
    code, shown, _ = command("show", "run", "--server", server.url, "--json").finish()
    assert code == 0
    content = json.loads(shown)
    overhead = content["overhead"]
    assert overhead["share"] > overhead["budget"] == 1e-4
    assert overhead["every"]["activations"] > Config().activations_every
    assert overhead["limit"]
    (item,) = server.json("/api/v1/runs")
    assert item["overhead"]["every"] == overhead["every"]
    changes = content["sampling"]
    assert {change["kind"]: change["every"] for change in changes}["activations"] == overhead["every"]["activations"]
    assert all(change["rank"] == 0 and "may cost 0.01 %" in change["because"] for change in changes)
    code, text, _ = command("show", "run", "--server", server.url).finish()
    assert code == 0
    last = [change for change in changes if change["kind"] == "activations"][-1]
    assert f"activations read every {last['every']} steps since step {last['step']}, rank 0: the agent costs" in text
    assert text.count("activations read every") == 1
