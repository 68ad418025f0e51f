"""Trainers in containers: the examples of ``docker-compose.yml``, and trainings of a user's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.containers.deployment import Deployment
from tests.containers.engine import Engine
from tests.server.conftest import wait_for

Deploy = Callable[..., Deployment]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PLAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
print("trained")
"""


def test_the_example_training_shows_up(deploy: Deploy, trainers: list[Path]) -> None:
    deployment = deploy()
    deployment.files = trainers
    deployment.up("server")
    deployment.environment["FLOATSCOPE_TOKEN"] = deployment.token("ingest")
    deployment.profiles = ["cpu"]
    deployment.up()
    wait_for(lambda: deployment.json("/api/v1/runs"), "the run")
    wait_for(lambda: deployment.json("/api/v1/runs/cpu-example")["steps"] > 10, "its steps")
    run = deployment.json("/api/v1/runs/cpu-example")
    assert run["state"] == "live"
    assert len(run["layers"]) > 10
    said = deployment.compose("exec", "-T", "trainer-cpu", "cat", "/proc/1/status", "/proc/mounts")
    assert "Uid:\t10001\t10001" in said
    root = next(line for line in said.splitlines() if line.split()[1:2] == ["/"])
    assert "ro" in root.split()[3].split(",")


@pytest.mark.parametrize("python", [("python",), ("python", "-I")], ids=["python", "isolated"])
def test_any_training_in_a_container_is_watched(deploy: Deploy, trainers: list[Path], python: tuple[str, ...]) -> None:
    deployment = deploy()
    deployment.files = trainers
    deployment.up("server")
    deployment.environment["FLOATSCOPE_TOKEN"] = deployment.token("ingest")
    training = ("floatscope", "run", "--name", "contained", "--", *python, "-c", PLAIN)
    said = deployment.compose("run", "--rm", "--no-TTY", "trainer-cpu", *training)
    assert said == "trained\n"
    run = deployment.json("/api/v1/runs/contained")
    assert (run["state"], run["steps"]) == ("finished", 5)
    assert [layer["name"] for layer in run["layers"]] == ["0", "1"]


def test_what_the_rocm_image_holds_works_as_far_as_it_does_without_a_card(engine: Engine, trainers: list[Path]) -> None:
    run = (
        "run",
        "--rm",
        "--read-only",
        "--tmpfs=/tmp:exec",
        "--cap-drop=ALL",
        *mounted(trainers),
        "floatscope-trainer",
    )
    names = "import getpass, floatscope, torch; print(getpass.getuser(), torch.__version__)"
    user, version = engine.podman(*run, "python", "-c", names).stdout.split()
    assert user == "floatscope"
    assert version
    told = engine.podman(*run, "floatscope", "doctor", "--json", check=False)
    assert told.returncode in {0, 1}, told.stderr
    assert {verdict["status"] for verdict in json.loads(told.stdout)["verdicts"]} <= {"ok", "warn", "fail", "skip"}
    tested = engine.podman(*run, "floatscope", "selftest", "--json")
    assert json.loads(tested.stdout)


def mounted(files: list[Path]) -> list[str]:
    """Options that mount what ``files`` for Compose mount into the trainers."""
    services = [json.loads(file.read_text())["services"]["trainer"] for file in files]
    return [f"--volume={volume}" for service in services for volume in service["volumes"]]
