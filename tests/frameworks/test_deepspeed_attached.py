"""A loop around a DeepSpeed engine under ``floatscope run``: two ranks over gloo on the CPU."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.frameworks.environments import DEEPSPEED, environment
from tests.frameworks.serving import Server

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "inside" / "deepspeed_loop.py"
STEPS = 4


@pytest.fixture
def more(tmp_path: Path) -> dict[str, str]:
    """Variables of a training on the CPU."""
    return {"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore", "TORCH_EXTENSIONS_DIR": str(tmp_path)}


def launched(by: str) -> list[str]:
    """What starts the program on two ranks."""
    python = environment("deepspeed", DEEPSPEED)
    if by == "torchrun":
        return [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(PROGRAM)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--num_gpus", "2", "--master_port", str(port), "--no_local_rank"]
    return [str(python.with_name("deepspeed")), *options, str(PROGRAM)]


@pytest.mark.parametrize(("stage", "by"), [(0, "torchrun"), (2, "deepspeed"), (3, "torchrun")])
def test_it_is_watched_and_nothing_changes(
    train: Callable[..., str], server: Server, tmp_path: Path, more: dict[str, str], stage: int, by: str
) -> None:
    train([*launched(by), str(stage), str(tmp_path / "alone.pt")], more=more)
    run = f"zero{stage}"
    said = train([*launched(by), str(stage), str(tmp_path / "watched.pt")], run=run, server=server, more=more)
    assert "failed while" not in said
    alone, watched = (torch.load(tmp_path / f"{name}.pt") for name in ("alone", "watched"))
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    shown = server.show(run)
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)
    assert {layer["name"] for layer in shown["layers"]} == {"0", "2"}
    assert shown["coverage"]["trainable"] == {"observed": 2, "total": 2}
    assert (shown["config"]["declared_precision"], shown["config"]["zero_stage"]) == ("bf16", stage)
    assert shown["config"]["gradient_accumulation_steps"] == 2
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"bf16"}
    norms = server.scalar(run, "grad_norm")
    assert list(norms) == list(range(STEPS))
    assert norms == pytest.approx(server.scalar(run, "grad_norm/framework"), rel=1e-2)
    assert list(server.scalar(run, "loss")) == list(range(STEPS))
    assert set(server.scalar(run, "micro_batches").values()) == {2.0}
    assert all(spent > 0 for spent in server.scalar(run, "phase/optimizer_s").values())


def test_a_training_that_loads_a_checkpoint_goes_on_at_its_step(
    train: Callable[..., str], server: Server, tmp_path: Path, more: dict[str, str]
) -> None:
    more |= {"FLOATSCOPE_TEST_CHECKPOINT": str(tmp_path / "checkpoint")}
    for attempt in (1, 2):
        train([*launched("torchrun"), "2", str(tmp_path / "weights.pt")], run="resumed", server=server, more=more)
        shown = server.show("resumed")
        assert (len(shown["attempts"]), shown["steps"]) == (attempt, attempt * STEPS)
    assert list(server.scalar("resumed", "loss")) == list(range(2 * STEPS))


def test_an_accelerator_around_an_engine_tells_what_it_logs(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path, more: dict[str, str]
) -> None:
    # Of two environments, since no other test needs both frameworks.
    [packages] = environment("deepspeed", DEEPSPEED).parents[1].glob("lib/python*/site-packages")
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [str(frameworks), *ranks, str(PROGRAM.with_name("accelerate_deepspeed.py")), str(packages)]
    train([*command, str(tmp_path / "alone.pt")], more=more)
    said = train([*command, str(tmp_path / "watched.pt")], run="both", server=server, more=more)
    assert "failed while" not in said
    alone, watched = (torch.load(tmp_path / f"{name}.pt") for name in ("alone", "watched"))
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    shown = server.show("both")
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)
    assert {layer["name"] for layer in shown["layers"]} == {"0", "2"}
    assert shown["coverage"]["trainable"] == {"observed": 2, "total": 2}
    config = shown["config"]
    assert (config["framework"]["name"], config["declared_precision"]) == ("accelerate", "bf16")
    assert (config["zero_stage"], config["gradient_accumulation_steps"]) == (2, 2)
    assert config["arguments"]["accelerate"]["note"] == "mine"
    assert config["arguments"]["deepspeed"]["zero_optimization"]["stage"] == 2
    for name in ("loss", "raw_loss", "mine", "grad_norm"):
        assert list(server.scalar("both", name)) == list(range(STEPS)), name
    assert set(server.scalar("both", "micro_batches").values()) == {2.0}
