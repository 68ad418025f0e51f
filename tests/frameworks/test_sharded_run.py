"""``floatscope run`` in front of trainings that shard with FSDP2: two ranks over gloo on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.frameworks.serving import Server

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "inside" / "sharded.py"
STEPS = 4
LAYERS = {"layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down", "output"}


@pytest.mark.parametrize("name", ["accelerate", "titan"])
def test_it_is_watched_and_nothing_changes(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path, name: str
) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(frameworks), *ranks, str(PROGRAM), name]
    train([*command, str(tmp_path / "alone.pt")])
    said = train([*command, str(tmp_path / "watched.pt")], run=name, server=server)
    assert "failed while" not in said
    alone, watched = (torch.load(tmp_path / f"{kind}.pt") for kind in ("alone", "watched"))
    assert alone.keys() == watched.keys()
    assert all(torch.equal(alone[key], watched[key]) for key in alone)
    shown = server.show(name)
    assert (shown["state"], shown["steps"], shown["ranks"], shown["world"]) == ("finished", STEPS, [0, 1], 2)
    assert [attempt["n"] for attempt in shown["attempts"]] == [1]
    assert {layer["name"] for layer in shown["layers"]} == LAYERS
    assert shown["coverage"]["trainable"] == {"observed": len(LAYERS), "total": len(LAYERS)}
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"bf16"}
    norms = server.scalar(name, "grad_norm")
    assert list(norms) == list(server.scalar(name, "loss")) == list(range(STEPS))
    assert all(norm > 0 for norm in norms.values())
    assert set(server.scalar(name, "micro_batches").values()) == {2.0}
