"""Checkpoints are noted as they are saved, beside the steps and without adding one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as distributed_checkpoint

from floatscope._attach import checkpoints
from tests.agent.attach.conftest import Found


@pytest.fixture
def followed() -> Iterator[None]:
    undo = checkpoints.follow(torch)
    yield
    undo()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.usefixtures("followed")
def test_checkpoints_of_a_training(found: Found, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), tmp_path / "initial.pt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    torch.save(model.state_dict(), tmp_path / "two.pt")
    torch.save(model.state_dict(), io.BytesIO())
    with pytest.raises(RuntimeError):
        torch.save(model.state_dict(), tmp_path / "no" / "such" / "folder.pt")
    train(model, optimizer, 1)
    torch.save(f=str(tmp_path / "three.pt"), obj=model.state_dict())
    records = found.sink.records()
    events = [(record.step, e.detail) for record in records for e in record.events if e.kind == "checkpoint"]
    assert events == [
        (1, {"path": str(tmp_path / "two.pt"), "steps": 2}),
        (2, {"path": str(tmp_path / "three.pt"), "steps": 3}),
    ]
    assert {record.step for record in records} == {0, 1, 2}


def test_a_checkpoint_of_a_distributed_training(found: Found, tmp_path: Path) -> None:
    undo = checkpoints.follow(distributed_checkpoint)
    model = nn.Linear(2, 2)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    with pytest.warns(UserWarning, match="a single process"):
        distributed_checkpoint.save(model.state_dict(), checkpoint_id=tmp_path / "one", no_dist=True)  # type: ignore[attr-defined]
    undo()
    (event,) = [e for record in found.sink.records() for e in record.events if e.kind == "checkpoint"]
    assert event.detail == {"path": str(tmp_path / "one"), "steps": 1}


def test_user_names_in_paths_go(found: Found) -> None:
    library = ModuleType("safetensors.torch")
    saved: list[str] = []
    cast("Any", library).save_file = lambda tensors, filename, metadata=None: saved.append(filename)
    undo = checkpoints.follow(library)
    model = nn.Linear(2, 2)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    cast("Any", library).save_file({}, "/home/marie/out/model.safetensors")
    undo()
    (event,) = [e for record in found.sink.records() for e in record.events if e.kind == "checkpoint"]
    assert event.detail["path"] == "~/out/model.safetensors"
    assert saved == ["/home/marie/out/model.safetensors"]
