"""Frameworks that train in fp16 on a card, with loss scalers of their own, and know nothing of us."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.frameworks.serving import Server

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none")

ROOT = Path(__file__).parents[2]
INSIDE = ROOT / "tests" / "frameworks" / "inside"
STEPS = 4
SKIPPED = [1, 2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "data")
    yield server
    server.stop()


def train(command: list[str], run: str, server: Server | None) -> None:
    watched = []
    if server is not None:
        watched = [sys.executable, "-m", "floatscope", "run", "--server", server.url, "--name", run, "--"]
    paths = [ROOT / "agent", ROOT / "server", ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = os.environ | {
        "CUDA_VISIBLE_DEVICES": "0",
        "DISABLE_VERSION_CHECK": "1",  # LLaMA-Factory's, of what a machine happens to have
        "FLOATSCOPE_TEST_DEVICE": "cuda",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "TRANSFORMERS_OFFLINE": "1",
    }
    everything = [*watched, sys.executable, *command]
    done = subprocess.run(everything, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "failed while" not in done.stderr


def skips(server: Server, run: str) -> list[tuple[int, str, int]]:
    return [(skip["step"], skip["layer"], skip["rank"]) for skip in server.show(run)["skipped_steps"]]


@pytest.mark.parametrize("name", ["accelerate", "lightning", "transformers"])
def test_the_steps_that_its_scaler_skips_and_their_layer(server: Server, tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    for run, kind, whose in (("", "alone", None), (name, "watched", server)):
        steps = [str(step) for step in SKIPPED]
        train([str(INSIDE / "programs.py"), name, str(tmp_path / f"{kind}.pt"), *steps], run, whose)
    alone, watched = (torch.load(tmp_path / f"{kind}.pt", map_location="cpu") for kind in ("alone", "watched"))
    assert all(torch.equal(alone[key], watched[key]) for key in {**alone, **watched})
    shown = server.show(name)
    assert shown["steps"] == STEPS
    assert [(step, layer.rpartition(".")[2], rank) for step, layer, rank in skips(server, name)] == [
        (step, "down", 0) for step in SKIPPED
    ]
    assert list(server.scalar(name, "loss_scale").values()) == [65536.0, 65536.0, 32768.0, 16384.0]
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"fp16"}


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_deepspeed_skips_by_a_scaler_of_its_own(server: Server, tmp_path: Path, stage: int) -> None:
    run = f"deepspeed-{stage}"
    for name, kind, whose in (("", "alone", None), (run, "watched", server)):
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        command += [str(INSIDE / "deepspeed_loop.py"), str(stage), str(tmp_path / f"{kind}.pt")]
        train([*command, *(str(step) for step in SKIPPED)], name, whose)
    alone, watched = (torch.load(tmp_path / f"{kind}.pt", map_location="cpu") for kind in ("alone", "watched"))
    assert all(torch.equal(alone[key], watched[key]) for key in {**alone, **watched})
    assert [(step, rank) for step, _, rank in skips(server, run)] == [(step, 0) for step in SKIPPED]
    assert {layer for _, layer, _ in skips(server, run)} == {"2"}
    assert list(server.scalar(run, "loss_scale").values()) == [1024.0, 1024.0, 512.0, 256.0]


@pytest.mark.skipif(importlib.util.find_spec("llamafactory") is None, reason="LLaMA-Factory is not installed")
def test_llamafactory(server: Server, tmp_path: Path) -> None:
    train([str(INSIDE / "tiny_llamafactory.py"), str(tmp_path)], "", None)
    for run, kind, whose in (("", "alone", None), ("llamafactory", "watched", server)):
        program = str(INSIDE / "overflowing_llamafactory.py")
        train([program, str(tmp_path / f"fp16-{kind}.yaml"), *(str(step) for step in SKIPPED)], run, whose)
    weights = [(tmp_path / f"fp16-{kind}" / "model.safetensors").read_bytes() for kind in ("alone", "watched")]
    assert weights[0] == weights[1]
    assert skips(server, "llamafactory") == [(step, "model.layers.1.mlp.down_proj", 0) for step in SKIPPED]
    assert server.show("llamafactory")["config"]["declared_precision"] == "fp16"
