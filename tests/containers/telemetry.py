"""What an agent sends to a deployment, and what is stored of it."""

from __future__ import annotations

from typing import Any

from floatscope import wire
from tests.containers.deployment import Deployment
from tests.server.bodies import layer, scalars, summaries
from tests.server.conftest import Agent

__all__ = ["agent", "insist", "losses", "send"]


def agent(deployment: Deployment, run: str = "run") -> Agent:
    """Connected, with the ingest token."""
    one = Agent(address=deployment.address, token=deployment.token("ingest"), run=run, layers=[layer(0, "a")])
    welcome = one.connect()
    assert isinstance(welcome, wire.Welcome), welcome
    return one


def send(one: Agent, *losses: float) -> None:
    """A step for each loss, acknowledged."""
    for loss in losses:
        assert isinstance(_deliver(one, loss), wire.Ack)


def insist(one: Agent, loss: float) -> int:
    """The same for one step, again until the server can store it; how often it could not."""
    seq, refused = one.seq, 0
    while not isinstance(answer := _deliver(one, loss), wire.Ack):
        assert isinstance(answer, wire.Nack), answer
        assert answer.retryable, answer
        one.seq = seq
        refused += 1
    return refused


def losses(deployment: Deployment, run: str = "run") -> list[Any]:
    """What is stored of them."""
    (series,) = deployment.json(f"/api/v1/runs/{run}/scalars?names=loss&points=5000")
    assert series["cell"] == 1
    values: list[Any] = series["values"]
    return values


def _deliver(one: Agent, loss: float) -> wire.ServerMessage:
    step = one.seq
    body = wire.Body(
        summaries=(summaries("grad", step, [[1.0]]),), scalars=(scalars("loss", step, [loss]),), first_step=step
    )
    return one.deliver(body)
