"""A loop around Megatron Core under ``floatscope run``: two ranks over gloo on the CPU, in the place of two cards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.frameworks.environments import MEGATRON, environment
from tests.frameworks.serving import Server

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "inside" / "megatron_loop.py"
STEPS = 6
TRAINED = 2 + 2 * 6 + 2  # embeddings, in each block norms and projections, the last norm, the output
CULPRIT = "decoder.layers.1.mlp.linear_fc2"


@pytest.mark.parametrize(
    ("kind", "stored", "overflows"),
    [
        ("plain", "fp32", ()),
        ("plain", "bf16", ()),
        ("plain", "fp16", (2, 4)),
        ("distributed", "fp32", ()),
        ("distributed", "bf16", ()),
        ("distributed", "fp16", (2, 4)),
    ],
)
def test_it_is_watched_and_nothing_changes(
    train: Callable[..., str], server: Server, tmp_path: Path, kind: str, stored: str, overflows: tuple[int, ...]
) -> None:
    python = environment("megatron", MEGATRON)
    more = {"PYTHONWARNINGS": "ignore"}
    command = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(PROGRAM)]
    last = [*map(str, overflows)]
    train([*command, kind, stored, str(tmp_path / "alone.pt"), *last], more=more)
    run = f"{kind}-{stored}"
    said = train([*command, kind, stored, str(tmp_path / "watched.pt"), *last], run=run, server=server, more=more)
    assert "failed while" not in said
    alone, watched = (torch.load(tmp_path / f"{name}.pt") for name in ("alone", "watched"))
    assert all(torch.equal(alone["weights"][name], watched["weights"][name]) for name in alone["weights"])
    assert watched["said"] == alone["said"]
    told = watched["said"]
    shown = server.show(run)
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)
    assert [attempt["n"] for attempt in shown["attempts"]] == [1]
    assert shown["coverage"]["trainable"] == {"observed": TRAINED, "total": TRAINED}
    config = shown["config"]
    assert (config["framework"]["name"], config["declared_precision"]) == ("megatron", stored)
    assert config["distributed_optimizer"] == (kind == "distributed")
    # One layer, found on every rank that has a part of what has overflowed.
    assert {(entry["step"], entry["layer"]) for entry in shown["skipped_steps"]} == {(s, CULPRIT) for s in overflows}
    updated = [step for step in range(STEPS) if step not in overflows]
    norms = server.scalar(run, "grad_norm")
    # Before it was clipped, and without the loss scale, as Megatron prints it.
    assert {step: norms[step] for step in updated} == pytest.approx({s: told[s]["norm"] for s in updated}, rel=1e-3)
    framework = server.scalar(run, "grad_norm/framework")
    assert framework == pytest.approx({step: told[step]["norm"] for step in updated}, rel=1e-6)
    clips = {step: min(1.0, 0.5 / (told[step]["norm"] + 1e-6)) for step in updated}
    assert server.scalar(run, "clip_coef") == pytest.approx(clips, rel=1e-5)
    if stored == "fp16":
        assert server.scalar(run, "loss_scale") == {step: told[step]["scale"] for step in range(STEPS)}
    losses = server.scalar(run, "loss")
    assert list(losses) == list(range(STEPS))
    assert losses == pytest.approx({step: told[step]["loss"] for step in range(STEPS)}, rel=0.1)
    assert set(server.scalar(run, "micro_batches").values()) == {2.0}
    assert set(server.scalar(run, "lr").values()) == {0.01}
    for phase in ("backward", "optimizer"):
        assert all(spent > 0 for spent in server.scalar(run, f"phase/{phase}_s").values()), phase


def test_the_steps_and_arguments_of_megatron_lm_are_taken(
    train: Callable[..., str], server: Server, tmp_path: Path
) -> None:
    command = [str(environment("megatron", MEGATRON)), "-m", "torch.distributed.run", "--standalone"]
    more = {"PYTHONWARNINGS": "ignore", "FLOATSCOPE_TEST_ITERATION": "10"}
    train([*command, str(PROGRAM), "plain", "fp32", str(tmp_path / "watched.pt")], run="lm", server=server, more=more)
    assert list(server.scalar("lm", "loss")) == list(range(10, 10 + STEPS))
    told = server.show("lm")["config"]["arguments"]["megatron"]
    assert told == {"iteration": 10, "train_iters": 10 + STEPS, "wandb_api_key": "***", "curr_iteration": 10}
