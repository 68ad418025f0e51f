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


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_it_is_watched_and_nothing_changes(
    frameworks: Path, train: Callable[..., str], server: Server, tmp_path: Path, name: str
) -> None:
    command = [str(frameworks), str(PROGRAM), name]
    train([*command, str(tmp_path / "alone.pt")])
    said = train([*command, str(tmp_path / "watched.pt")], run=name, server=server)
    assert "failed while" not in said
    alone, watched = (torch.load(tmp_path / f"{kind}.pt") for kind in ("alone", "watched"))
    assert all(torch.equal(alone[key], watched[key]) for key in alone)
    shown = server.show(name)
    assert (shown["state"], shown["steps"]) == ("finished", STEPS)
    assert [attempt["n"] for attempt in shown["attempts"]] == [1]
    assert {layer["name"].rpartition(".")[2] for layer in shown["layers"]} == {"up", "down"}
    assert shown["coverage"]["trainable"] == {"observed": 2, "total": 2}
    config = shown["config"]
    assert config["declared_precision"] == DECLARED[name]
    assert config["framework"]["name"].split(".")[0] == name
    executed = {o["format"] for layer in shown["layers"] for o in layer["operands"] if o["kind"] == "act"}
    assert executed == {"bf16"}
    assert list(server.scalar(name, "loss")) == list(server.scalar(name, "raw_loss")) == list(range(STEPS))
    if name != "transformers":
        assert list(server.scalar(name, "mine")) == list(range(STEPS))
    if name == "accelerate":
        assert config["arguments"]["accelerate"]["api_key"] == "***"
        assert config["arguments"]["accelerate"]["note"] == "mine"
