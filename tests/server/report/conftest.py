"""A run that goes wrong, with names from somebody who means ill."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from floatscope import wire
from tests.server.bodies import histogram

if TYPE_CHECKING:
    from tests.server.conftest import Make, MakeAgent, Running

MARKUP = "<img src=x onerror=alert(1)>\"'&"
LAYER = f"block.1.\u202e{MARKUP}</title></svg><script>alert(2)</script>"
PASSWORD = "correct-horse"
SECRET = "hf_abcdefghijklmnopqrstuvwx"


@pytest.fixture
def wrong(server: Running, agent: MakeAgent, make: Make, wait_for: Callable[[Callable[[], object], str], None]) -> str:
    """Its name. 40 steps of three layers in fp16: the first is over at step 20, the third is NaN at step 25."""
    layers = [make.layer(n, name, ("grad", "fp16")) for n, name in enumerate((LAYER, "block.0.a", "block.1.b, c"))]
    absmax = np.full((40, 3), 16.0, np.float32)
    absmax[:, 0] = 2.0 ** np.linspace(2, 14, 40)
    absmax[20, 0] = 80000.0
    nans = np.zeros((40, 3))
    nans[25, 2] = 5
    loss = [2.0 - 0.01 * step for step in range(40)]
    loss[25] = math.nan
    config = {
        "command": ["python", "train.py", "--lr", "1e-4", "--password", PASSWORD, MARKUP],
        "versions": {"torch": "2.9.0"},
        "hub": {"api_key": SECRET, "repo": f"https://user:{SECRET}@hub.example/x"},
        "note": f"the token is {SECRET}",
        "doctor": [{"item": "driver", "status": "wrong", "value": MARKUP, "why": "old", "fix": "renew it"}, "odd", 3],
    }
    one = agent(run=MARKUP, layers=layers, config=config)
    one.deliver(
        wire.Body(
            first_step=0,
            steps=40,
            summaries=(make.summaries("grad", 0, absmax, nans=nans),),
            scalars=(make.scalars("loss", 0, loss), make.scalars("grad_norm", 0, [1.0] * 40)),
            histograms=(histogram(4, 254, [3, 5]),),
            events=(wire.Event(kind="skipped", step=25, detail={}),),
        )
    )
    wait_for(lambda: json.loads(server.get("/api/v1/alerts").body), "an alert")
    return MARKUP
