"""``floatscope run`` before trainings that know nothing of it, and what a real server shows of them afterwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

LOOP = str(Path(__file__).parent / "attached_loop.py")
PYTHON = [sys.executable]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAYERS = {"0", "2", "4"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("run") / "data"
    command = [sys.executable, "-m", "floatscope", "server", "--port", "0", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        try:
            assert address is not None
            yield address[0]
        finally:
            process.terminate()


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
        "NCCL_SECRET": "tell-nobody",
    }


def floatscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatscope", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=250, check=False)


def shown(server: str, run: str) -> dict[str, Any]:
    """The run once it has ended: nobody acknowledges a goodbye, and a process that stood still has left the rest."""
    floatscope("sync", "--server", server)
    end = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"{server}/api/v1/runs/{run}", timeout=60) as answer:
            if json.load(answer)["state"] == "finished":
                break
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.05)
    found: dict[str, Any] = json.loads(floatscope("show", run, "--json", "--server", server).stdout)
    return found


def same_weights(one: Path, other: Path) -> bool:
    weights = torch.load(one), torch.load(other)
    return all(torch.equal(weights[0][name], weights[1][name]) for name in {**weights[0], **weights[1]})


@pytest.mark.parametrize("launcher", [PYTHON, RANKS], ids=["python", "torchrun"])
def test_a_training_that_nobody_changed(server: str, tmp_path: Path, launcher: list[str]) -> None:
    overflowing = ("1", "3")
    subprocess.run([*launcher, LOOP, str(tmp_path / "alone.pt"), *overflowing], env=environment(), check=True)
    name = f"loop-{len(launcher)}"
    command = [*launcher, LOOP, str(tmp_path / "watched.pt"), *overflowing]
    done = floatscope("run", "--server", server, "--name", name, "--", *command)
    assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "alone.pt", tmp_path / "watched.pt")

    run = shown(server, name)
    ranks = 2 if launcher is RANKS else 1
    assert (run["state"], run["steps"], run["ranks"]) == ("finished", 5, list(range(ranks)))
    assert {layer["name"] for layer in run["layers"]} == LAYERS
    assert len(run["attempts"]) == 1
    assert [(skip["step"], skip["layer"]) for skip in run["skipped_steps"]] == [(1, "4"), (3, "4")]
    executed = {o["format"] for layer in run["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"fp16"}
    declared = run["config"]["precision"]
    assert (declared["autocast"], declared["parameters"], declared["loss_scaler"]) == (
        "float16",
        {"float32": 1633},
        True,
    )
    assert run["config"]["command"][-2:] == ["1", "3"]
    assert run["scalars"]["loss"]["n"] == 5
    assert run["scalars"]["micro_batches"]["last"] == 2
    assert "tell-nobody" not in json.dumps(run)
    assert "hf_abc" not in json.dumps(run)
