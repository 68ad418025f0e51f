"""Every kind of card from its driver's library to what ``floatscope show`` prints, while a training runs.

The machine's /sys is a tree of ours; the library that reads it is Debian's librocm_smi64, or AMD SMI's stand-in.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.agent.devices.machine import KINDS, Machine, as_sys
from tests.frameworks.serving import Server
from tests.needs import needs

if TYPE_CHECKING:
    from tests.agent.devices.conftest import FakeSys

TRAINING = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not Path(sys.argv[1]).exists():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


SELDOM = {
    "pcie_width": 16,
    "pcie_speed_gts": 32.0,
    "pcie_max_width": 16,
    "pcie_max_speed_gts": 32.0,
    "pcie_replays": 3,
    "xgmi_links": 0,
    "xgmi_bytes_per_s": None,
    "ecc_corrected": 8,
    "ecc_uncorrected": 0,
    "throttle_thermal_percent": None,
}
"""Of the first card, which is the first whose turn it is; it has no ``gpu_metrics``."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("cards") / "data")
    yield started
    started.stop()


@pytest.fixture(params=["rocm-smi", "pyrsmi"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The backend's name, and the environment in which it is found."""
    if request.param == "rocm-smi":
        needs(ctypes.util.find_library("rocm_smi64"), "ROCm SMI (librocm-smi64-1)")
        return request.param, {"ROCM_PATH": "/nonexistent"}
    stand_in = str(request.getfixturevalue("rocm_path"))
    return request.param, {"ROCM_PATH": stand_in, "FAKE_SMI_CARDS": str(tmp_path / "cards")}


def test_what_the_cards_tell_is_what_is_shown(
    server: Server, fake_sys: FakeSys, library: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    machine = Machine(fake_sys, tmp_path / "cards")
    script, stop = tmp_path / "train.py", tmp_path / "stop"
    script.write_text(TRAINING)
    backend, environment = library
    run = [sys.executable, "-m", "floatscope", "run", "--server", server.url, "--name", backend]
    command = as_sys(fake_sys.root, [*run, "--", sys.executable, str(script), str(stop)])

    def told(run: dict[str, Any]) -> list[dict[str, object]]:
        """Of each card what a machine tells, in the cards' order."""
        devices = sorted(run["devices"], key=lambda one: one["index"])
        return [{"backend": one["backend"], **{name: one[name] for name in machine.expected(0)}} for one in devices]

    def expected() -> list[dict[str, object]]:
        return [{"backend": f"{backend}+sysfs", **machine.expected(place)} for place in range(len(KINDS))]

    def arrived() -> bool:
        with urllib.request.urlopen(f"{server.url}/api/v1/runs/{backend}", timeout=60) as answer:
            return told(json.load(answer)) == expected()

    with subprocess.Popen(command, env={**os.environ, **environment, "OMP_NUM_THREADS": "1"}) as training:
        try:
            server.until(arrived)
            # Two cards lose their figures, the others change.
            machine.set(busy=12, watts=300, used_gib=7, celsius=33, lost=(3, 9))
            server.until(arrived)
        finally:
            stop.touch()
        assert training.wait(120) == 0
    server.until(lambda: server.show(backend)["state"] == "finished")  # a goodbye is not acknowledged
    shown = server.show(backend)
    assert (shown["state"], told(shown)) == ("finished", expected())
    first = min(shown["devices"], key=lambda one: one["index"])
    assert {name: first[name] for name in SELDOM} == SELDOM
