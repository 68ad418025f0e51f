"""What an agent sends to a deployment, and what is stored of it."""

from __future__ import annotations

from typing import Any

from floatscope import wire
from tests.containers.deployment import Deployment
from tests.server.bodies import layer, scalars, summaries
from tests.server.conftest import Agent, wait_for

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


def insist(one: Agent, loss: float) -> None:
    """The same for one step, again and again until the server can store it."""
    seq = one.seq

    def stored() -> bool:
        one.seq = seq
        answer = _deliver(one, loss)
        assert isinstance(answer, wire.Ack) or (isinstance(answer, wire.Nack) and answer.retryable), answer
        return isinstance(answer, wire.Ack)

    wait_for(stored, "the step to be stored")


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
