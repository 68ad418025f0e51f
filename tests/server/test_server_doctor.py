"""A training's machine is judged while it starts; the server answers with the verdicts of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import floatscope

if TYPE_CHECKING:
    from tests.server.conftest import Running


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
