"""Trainers in containers: the examples of ``docker-compose.yml``, and trainings of a user's."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.devices.conftest import FakeSys
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
ENDLESS = PLAIN.replace("range(5)", "iter(int, 1)")

# Where there is no card: the training on the processor, and a tree as /sys that has one.
_ONE_CARD = """
services:
  trainer:
    devices: !reset []
    command: ["python", "-m", "floatscope._demo.train", "--run=rocm-example", "--schedule=sane"]
    volumes: ["{system}:/sys:ro"]
  trainer-cpu:
    volumes: ["{system}:/sys:ro"]
"""
_SHARED = """
services:
  trainer:
    ipc: service:trainer-cpu
  trainer-cpu:
    ipc: shareable
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


class Elsewhere:
    """Trainings in a network that no service of the file is in. They reach the server as from another machine, by the
    address and the port under which this one publishes it."""

    def __init__(self, engine: Engine, files: list[Path], deployment: Deployment) -> None:
        self._engine = engine
        self._mounts = mounted(files)
        self._network = engine.podman("network", "create").stdout.strip()
        self._server = f"http://{_this_machine()}:{deployment.address.rpartition(':')[2]}"

    def run(self, name: str, script: str, token: str, *options: str) -> str:
        """What a training says that is watched as ``name``."""
        return self._engine.podman(
            *("run", f"--network={self._network}", "--read-only", "--tmpfs=/tmp:exec", "--cap-drop=ALL"),
            *(f"--env=FLOATSCOPE_SERVER={self._server}", f"--env=FLOATSCOPE_TOKEN={token}", *self._mounts, *options),
            *("floatscope-trainer-cpu", "floatscope", "run", "--name", name, "--", "python", "-c", script),
        ).stdout

    def remove(self) -> None:
        """With what runs in it."""
        self._engine.podman("network", "rm", "--force", self._network)


def _this_machine() -> str:
    """Its address in the network by which it reaches others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))
        return str(one.getsockname()[0])


@pytest.fixture
def elsewhere(engine: Engine, trainers: list[Path]) -> Iterator[Callable[[Deployment], Elsewhere]]:
    """Such a network beside a deployment."""
    made: list[Elsewhere] = []

    def make(deployment: Deployment) -> Elsewhere:
        made.append(Elsewhere(engine, trainers, deployment))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.mark.parametrize(
    ("published", "scope"),
    [(True, "ingest"), (True, "read"), (False, "ingest")],
    ids=["published", "with-another-token", "for-this-machine-only"],
)
def test_an_agent_on_another_network(
    deploy: Deploy, elsewhere: Callable[[Deployment], Elsewhere], *, published: bool, scope: str
) -> None:
    deployment = deploy(FLOATSCOPE_BIND=_this_machine() if published else "")
    deployment.up()
    assert elsewhere(deployment).run("far", PLAIN, deployment.token(scope), "--rm") == "trained\n"
    runs = [(run["name"], run["state"], run["steps"]) for run in deployment.json("/api/v1/runs")]
    assert runs == ([("far", "finished", 5)] if published and scope == "ingest" else [])


def test_the_next_container_sends_what_a_killed_one_has_left(
    deploy: Deploy, engine: Engine, elsewhere: Callable[[Deployment], Elsewhere], tmp_path: Path
) -> None:
    deployment = deploy(FLOATSCOPE_BIND=_this_machine())
    deployment.up()
    token, there = deployment.token("ingest"), elsewhere(deployment)
    spool = tmp_path / "spool"
    spool.mkdir()
    os.chown(spool, 10001, 10001)
    kept = (f"--volume={spool}:/spool", "--env=FLOATSCOPE_DIR=/spool")
    deployment.stop()
    killed = there.run("killed", ENDLESS, token, "--detach", *kept).strip()
    wait_for(lambda: any(file.stat().st_size > 20_000 for file in spool.glob("*/*.spool")), "the spool")
    engine.podman("kill", killed)
    (left,) = spool.iterdir()
    deployment.compose("start", "--wait", "server")
    assert deployment.json("/api/v1/runs") == []
    there.run("next", ENDLESS, token, "--detach", *kept)
    wait_for(lambda: not left.exists(), "everything to be sent")
    wait_for(lambda: deployment.json("/api/v1/runs/killed")["state"] == "failed", "its end")
    assert deployment.json("/api/v1/runs/killed")["steps"] > 5


@pytest.mark.parametrize("shared", [False, True], ids=["as-in-the-file", "with-each-other"])
def test_whoever_shares_their_memory_trainers_and_cards_are_watched(
    deploy: Deploy, trainers: list[Path], tmp_path: Path, *, shared: bool
) -> None:
    system = FakeSys(tmp_path / "sys")
    system.card(0, "0000:05:00.0")
    for folder in ("devices/system", "fs/cgroup"):
        (system.root / folder).mkdir(parents=True)
    deployment = deploy()
    deployment.files = [*trainers]
    for name, text in (("card", _ONE_CARD.format(system=system.root)), *([("shared", _SHARED)] if shared else [])):
        deployment.files.append(tmp_path / f"{name}.yml")
        deployment.files[-1].write_text(text)
    deployment.up("server")
    deployment.environment["FLOATSCOPE_TOKEN"] = deployment.token("ingest")
    deployment.profiles = ["cpu", "rocm"]
    deployment.up()

    def of_ipc(service: str) -> str:
        return deployment.compose("exec", "-T", service, "readlink", "/proc/self/ns/ipc").strip()

    machine = str(Path("/proc/self/ns/ipc").readlink())
    assert (of_ipc("trainer") == machine) is not shared
    assert (of_ipc("trainer") == of_ipc("trainer-cpu")) is shared
    assert of_ipc("trainer-cpu") != machine

    def runs(field: str) -> dict[str, Any]:
        listed = [run["name"] for run in deployment.json("/api/v1/runs")]
        told = {name: deployment.json(f"/api/v1/runs/{name}")[field] for name in listed}
        return {name: value for name, value in told.items() if value}

    names = {"cpu-example", "rocm-example"}
    wait_for(lambda: set(runs("devices")) == set(runs("steps")) == names, "steps and cards of both")
    for (card,) in runs("devices").values():
        assert (card["pci"], card["busy_percent"], card["backend"]) == ("0000:05:00.0", 87.0, "sysfs")
    deployment.compose("stop", "trainer", "trainer-cpu")
    wait_for(lambda: runs("state") == dict.fromkeys(names, "finished"), "their ends")


def mounted(files: list[Path]) -> list[str]:
    """Options that mount what ``files`` for Compose mount into the trainers."""
    services = [json.loads(file.read_text())["services"]["trainer"] for file in files]
    return [f"--volume={volume}" for service in services for volume in service["volumes"]]
