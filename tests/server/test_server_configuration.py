"""What a run and each of its attempts were configured with."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from floatscope import wire

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running


def test_an_attempt_that_changed_its_configuration_says_so(server: Running, agent: MakeAgent) -> None:
    for attempt, lr in ((1, 1e-3), (2, 1e-3), (3, 5e-4)):
        agent(run="changed", attempt=attempt, config={"lr": lr})
    found = server.json("/api/v1/runs/changed")
    assert found["config"] == {"lr": 1e-3}
    assert [one["config"] for one in found["attempts"]] == [None, None, {"lr": 5e-4}]


def test_names_with_commas_can_be_compared(server: Running, agent: MakeAgent, make: Make) -> None:
    names = ["a,b", "50%, <b>"]
    for name in names:
        agent(run=name).deliver(wire.Body(scalars=(make.scalars("loss", 0, [1.0]),)))
    asked = "&".join(f"run={quote(name, safe='')}" for name in names)
    found = server.json(f"/api/v1/compare?what=scalars&{asked}")
    assert [one["run"] for one in found] == names
    assert server.get("/api/v1/compare?what=scalars").status == 422
