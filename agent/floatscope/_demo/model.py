"""A decoder-only transformer over bytes, small enough to train on one CPU core."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from floatscope._demo.fp8 import Fp8Linear

__all__ = ["GPT"]

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention; [batch, time, width] to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Fp8Linear(width, 3 * width)
        self.out = Fp8Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two linear layers with a GELU between them; [batch, time, width] to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = Fp8Linear(width, 4 * width)
        self.down = Fp8Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Logits [batch, time, 256] of the next byte from bytes [batch, time] (int64, time <= ``context``).

    The linear layers inside the blocks run in FP8; embeddings, norms, attention and the head run in fp32, as FP8
    recipes leave them in higher precision.
    """

    def __init__(self, *, width: int = 128, depth: int = 6, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]
