"""A training over two processes has the same bits with the agent and without it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from floatscope import wire
from tests.agent.distributed_ranks import finish, start_ranks


@pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.long)])
def test_the_same_weights_when_watched(tmp_path: Path, steps: int) -> None:
    names = [f"ddp:{steps}", f"ddp_accumulating:{steps}", f"zero_redundancy:{steps}", f"fsdp2_whole:{steps}"]
    finish(start_ranks(tmp_path, {2: names}), deadline_s=50 + 3 * steps)
    for name in names:
        for rank in (0, 1):
            result = pickle.loads((tmp_path / "2" / f"{name}.{rank}.pickle").read_bytes())
            assert result["kinds"] == [set(wire.KINDS)] * steps
            for once, again, watched in zip(result["once"], result["again"], result["watched"], strict=True):
                assert torch.equal(once, again), "the training repeats itself"
                assert torch.equal(once, watched)
