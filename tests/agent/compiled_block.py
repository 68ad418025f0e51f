"""A part of the models that the tests compile."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Block", "X"]

X = torch.linspace(-1, 1, 24).reshape(3, 8)


class Block(nn.Module):
    """With an activation that changes the output of a layer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(nn.functional.relu(self.up(self.norm(x)), inplace=True))
        return x + y
