"""``floatscope run`` in front of programs that use a framework and know nothing of us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.frameworks.serving import Server

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "inside" / "programs.py"
STEPS = 4
DECLARED = {"accelerate": "bf16", "lightning": "bf16-mixed", "transformers": "bf16"}


def same_weights(folder: Path) -> bool:
    alone, watched = (torch.load(folder / f"{kind}.pt") for kind in ("alone", "watched"))
    return all(torch.equal(alone[key], watched[key]) for key in {**alone, **watched})


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_it_is_watched_and_nothing_changes(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path, name: str
) -> None:
    launch = [str(frameworks.with_name("accelerate")), "launch", "--cpu"] if name == "accelerate" else [str(frameworks)]
    command = [*launch, str(PROGRAM), name]
    train([*command, str(tmp_path / "alone.pt")])
    said = train([*command, str(tmp_path / "watched.pt")], run=name, server=server)
    assert "failed while" not in said
    assert same_weights(tmp_path)
    shown = server.show(name)
    assert (shown["state"], shown["steps"]) == ("finished", STEPS)
    assert [attempt["n"] for attempt in shown["attempts"]] == [1]
    assert {layer["name"].rpartition(".")[2] for layer in shown["layers"]} == {"up", "down"}
    assert shown["coverage"]["trainable"] == {"observed": 2, "total": 2}
    config = shown["config"]
    assert config["declared_precision"] == DECLARED[name]
    assert config["framework"]["name"].split(".")[0] == name
    assert config["gradient_accumulation_steps"] == 2
    # Accelerate leaves the loop to its user.
    assert config.get("max_steps") == (None if name == "accelerate" else STEPS)
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"bf16"}
    assert list(server.scalar(name, "loss")) == list(server.scalar(name, "raw_loss")) == list(range(STEPS))
    assert set(server.scalar(name, "micro_batches").values()) == {2.0}
    raw, largest = server.scalar(name, "raw_loss"), server.scalar(name, "raw_loss_max")
    assert all(largest[step] >= raw[step] for step in range(STEPS))
    for phase in ("data", "forward", "backward", "optimizer"):
        spent = server.scalar(name, f"phase/{phase}_s")
        assert list(spent) == list(range(STEPS))
        # Accelerate fetches a batch ahead: the last step waits for none.
        assert all(spent[step] > 0 for step in range(STEPS - 1)), phase
    if name != "transformers":
        assert list(server.scalar(name, "mine")) == list(range(STEPS))
    if name == "accelerate":
        assert config["arguments"]["accelerate"]["api_key"] == "***"
        assert config["arguments"]["accelerate"]["note"] == "mine"


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_the_steps_that_a_scaler_skips_and_their_layer(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path, name: str
) -> None:
    command = [str(frameworks), str(PROGRAM), name]
    run = f"{name}-fp16"
    train([*command, str(tmp_path / "alone.pt"), "1", "2"])
    said = train([*command, str(tmp_path / "watched.pt"), "1", "2"], run=run, server=server)
    assert "failed while" not in said
    assert same_weights(tmp_path)
    shown = server.show(run)
    assert shown["steps"] == STEPS
    skipped = [(skip["step"], skip["layer"].rpartition(".")[2], skip["rank"]) for skip in shown["skipped_steps"]]
    assert skipped == [(1, "down", 0), (2, "down", 0)]
    assert list(server.scalar(run, "loss_scale").values()) == [1024.0, 1024.0, 512.0, 256.0]
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"fp16"}


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_two_ranks_are_one_run(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path, name: str
) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(frameworks), *ranks, str(PROGRAM), name]
    run = f"{name}-ranks"
    train([*command, str(tmp_path / "alone.pt")])
    said = train([*command, str(tmp_path / "watched.pt")], run=run, server=server)
    assert "failed while" not in said
    assert same_weights(tmp_path)
    shown = server.show(run)
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)
    assert len(shown["attempts"]) == 1
    # Not those of the wrapper that spreads it over the ranks.
    within = "model." if name == "lightning" else ""
    assert {layer["name"] for layer in shown["layers"]} == {f"{within}up", f"{within}down"}
    assert shown["coverage"]["trainable"] == {"observed": 2, "total": 2}
    assert list(server.scalar(run, "grad_norm")) == list(range(STEPS))
    assert list(server.scalar(run, "raw_loss")) == list(range(STEPS))


def test_ranks_that_lightning_launches_itself_find_one_name(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path
) -> None:
    command = [str(frameworks), str(PROGRAM), "lightning"]
    more = {"FLOATSCOPE_TEST_RANKS": "2"}
    train([*command, str(tmp_path / "alone.pt")], more=more)
    said = train([*command, str(tmp_path / "watched.pt")], server=server, more=more)
    assert "failed while" not in said
    assert same_weights(tmp_path)
    [run] = [name for name in server.runs() if name.startswith(f"{PROGRAM.stem}-")]
    shown = server.show(run)
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)


def test_a_trainer_that_overrides_everything_is_a_loop_of_its_own(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path
) -> None:
    command = [str(frameworks), str(PROGRAM), "subclass"]
    train([*command, str(tmp_path / "alone.pt")])
    said = train([*command, str(tmp_path / "watched.pt")], run="subclass", server=server)
    assert "failed while" not in said
    assert same_weights(tmp_path)
    shown = server.show("subclass")
    assert (shown["state"], shown["steps"]) == ("finished", STEPS)
    assert {layer["name"] for layer in shown["layers"]} == {"up", "down"}
    assert list(server.scalar("subclass", "loss")) == list(range(STEPS))
    assert set(server.scalar("subclass", "micro_batches").values()) == {2.0}
