"""Recorded runs through the command, from a server and from its folder, against a log of the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floatscope import wire

if TYPE_CHECKING:
    from tests.server.check.conftest import Checks
    from tests.server.conftest import Make, MakeAgent
    from tests.server.programs import Command

pytestmark = pytest.mark.engines("sqlite")

STEPS = 120
BROKEN = 100


def _losses() -> list[float]:
    return [2.0 + 0.01 * (step % 7) if step < BROKEN else float("nan") for step in range(STEPS)]


def test_a_run_is_judged_as_its_log(
    command: Callable[..., Command], agent: MakeAgent, make: Make, checks: Checks, tmp_path: Path
) -> None:
    data = tmp_path / "store"
    running = command("server", "--port", "0", "--data", str(data))
    address = running.address()
    one = agent(address=address, run="my run", layers=[make.layer(0, "a", ("grad", "fp16"))])
    one.deliver(wire.Body(first_step=0, steps=STEPS, scalars=(make.scalars("loss", 0, _losses()),)))

    def judged(*where: str) -> tuple[int, Any]:
        status, out, err = command("check", "my run", "--json", *where).finish()
        assert err == ""
        return status, json.loads(out)

    over_http = judged("--server", f"http://{address}")
    running.process.terminate()
    assert running.finish()[0] == 0
    alone = judged("--data", str(data))
    assert over_http == alone
    status, content = alone
    assert status == 1
    assert content["format"] == "run"
    assert content["records"] == STEPS
    assert content["series"]["loss"][BROKEN - 1 : BROKEN + 1] == [[BROKEN - 1, 2.01], [BROKEN, "NaN"]]
    log = "".join(json.dumps({"current_steps": step, "loss": loss}) + "\n" for step, loss in enumerate(_losses()))
    told = [(a["kind"], a["severity"], a["first_step"], a["reason"]) for a in checks(log).content["alerts"]]
    assert [(a["kind"], a["severity"], a["first_step"], a["reason"]) for a in content["alerts"]] == told
    status, out, err = command("check", "no run", "--data", str(data)).finish()
    assert (status, out) == (2, "")
    assert "there is no run 'no run'; there are: my run" in err
