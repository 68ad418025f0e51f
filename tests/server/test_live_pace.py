"""When what is new goes to the viewers: a step at once when all of its ranks have told of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from websockets.sync.client import connect

from floatscope import wire

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from websockets.sync.client import ClientConnection

    from tests.server.bodies import Unpack
    from tests.server.conftest import Agent, Make, MakeAgent, Running

_NEVER_S = 3600.0
_HEAT = {"kind": "grad", "metric": "absmax", "format": "auto"}


@pytest.fixture
def follow(
    server: Running, wait_for: Callable[[Callable[[], object], str], None]
) -> Iterator[Callable[[], ClientConnection]]:
    with connect(f"ws://{server.address}/live/v1", compression=None, close_timeout=1) as socket:

        def subscribe() -> ClientConnection:
            socket.send(json.dumps({"type": "subscribe", "run": "run", "heat": _HEAT}))
            wait_for(lambda: any(viewer.run for viewer in server.services.live.viewers), "the subscription")
            return socket

        yield subscribe


@pytest.fixture
def whole_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes out because it has waited long enough."""
    monkeypatch.setattr("floatscope_server.live._REST_S", _NEVER_S)
    monkeypatch.setattr("floatscope_server.live._ALONE_S", _NEVER_S)


@pytest.fixture
def ranks(agent: MakeAgent, make: Make) -> list[Agent]:
    layers = [make.layer(0, "a", ("grad", "fp16"))]
    return [agent(rank=rank, world=2, layers=layers, writer=f"{rank:032x}") for rank in range(2)]


def _until(socket: ClientConnection, kind: str) -> Any:  # noqa: ANN401 - JSON, or bytes
    while True:
        data = socket.recv(timeout=30)
        if kind == "heat" if isinstance(data, bytes) else json.loads(data)["type"] == kind:
            return data


def _step(make: Make, step: int, absmax: float) -> wire.Body:
    return wire.Body(first_step=step, steps=1, summaries=(make.summaries("grad", step, [[absmax]]),))


@pytest.mark.usefixtures("whole_steps_only")
def test_a_step_waits_for_its_ranks_and_for_nothing_else(
    ranks: list[Agent], make: Make, follow: Callable[[], ClientConnection], unpack: Unpack
) -> None:
    socket = follow()
    for step in range(2):
        for rank, absmax in zip(ranks, (2.0 + step, 1.0), strict=True):
            rank.deliver(_step(make, step, absmax))
        meta, arrays = unpack(_until(socket, "heat"))
        assert meta["first_step"] == step
        np.testing.assert_array_equal(arrays["values"], [[2.0 + step]])


@pytest.mark.usefixtures("whole_steps_only")
def test_a_step_in_parts_is_whole_with_its_last_one(
    agent: MakeAgent, make: Make, follow: Callable[[], ClientConnection], unpack: Unpack
) -> None:
    one = agent(layers=[make.layer(0, "a", ("grad", "fp16"))])
    socket = follow()
    scalars = wire.Body(continued=True, first_step=5, steps=1, scalars=(make.scalars("loss", 5, [1.0]),))
    one.deliver(scalars)
    one.deliver(_step(make, 5, 3.0))
    assert json.loads(_until(socket, "scalars"))["points"] == {"loss": [[5, 1.0]]}
    assert unpack(_until(socket, "heat"))[0]["first_step"] == 5


def test_a_rank_that_says_nothing_holds_up_no_step(
    ranks: list[Agent], make: Make, follow: Callable[[], ClientConnection], unpack: Unpack
) -> None:
    socket = follow()
    ranks[1].deliver(_step(make, 0, 4.0))
    assert unpack(_until(socket, "heat"))[0]["first_step"] == 0


def test_what_belongs_to_no_step_needs_none(
    ranks: list[Agent], follow: Callable[[], ClientConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floatscope_server.live._ALONE_S", 0.01)
    socket = follow()
    ranks[0].deliver(wire.Body(devices=(wire.Device(time_ns=1, backend="cpu", index=0),)))
    assert json.loads(_until(socket, "devices"))["samples"][0]["rank"] == 0
