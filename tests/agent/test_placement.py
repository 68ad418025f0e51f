"""What a tensor is to those of the other ranks, decided without any of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

from floatscope._placement import LOCAL, Placement, Ranks, dtensor_placement, group_placement

R, S, P = Replicate(), Shard(1), Partial()
LINE = torch.arange(4)
PLANE = torch.tensor([[4, 5], [6, 7]])


@pytest.mark.parametrize(
    ("placements", "coordinate", "ranks", "want"),
    [
        ((S,), (0,), LINE, Placement("shard")),
        ((S,), (3,), LINE, Placement("shard")),
        ((R,), (0,), LINE, Placement("replica")),
        ((R,), (3,), LINE, Placement("replica", 0)),
        ((R, S), (0, 1), PLANE, Placement("shard")),
        ((R, S), (1, 1), PLANE, Placement("shard", 5)),
        ((S, R), (1, 1), PLANE, Placement("shard", 6)),
        ((R, R), (1, 1), PLANE, Placement("replica", 4)),
        ((S, S), (1, 1), PLANE, Placement("shard")),
        ((S, P), (0, 0), PLANE, LOCAL),
        ((R,), None, LINE, Placement("shard")),
    ],
    ids=str,
)
def test_on_a_mesh(placements: Any, coordinate: Any, ranks: torch.Tensor, want: Placement) -> None:  # noqa: ANN401
    assert dtensor_placement(placements, coordinate, ranks) == want
    assert want.counts == (want.copy_of < 0)


def test_of_a_group_the_first_counts() -> None:
    assert group_placement("replica", [2, 5], 2) == Placement("replica")
    assert group_placement("replica", [2, 5], 5) == Placement("replica", 2)


def test_one_rank_has_everything() -> None:
    model = nn.Linear(2, 2)
    assert Ranks(model, 0, 1).of("grad", model.weight, model.weight) == (Placement(), "")


@pytest.mark.parametrize(
    ("kinds", "want"),
    [
        ("replica", "grad_norm"),
        ("shard replica", "grad_sumsq_share"),
        ("local", "grad_norm/local"),
        ("local shard", ""),
    ],
)
def test_what_a_rank_knows_of_the_norm(kinds: str, want: str) -> None:
    ranks = Ranks(nn.Linear(2, 2), 0, 2)
    ranks.gradients |= set(kinds.split())
    assert ranks.norm == want
