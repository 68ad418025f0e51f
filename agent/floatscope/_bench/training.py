"""The trainings that recorders are put on."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from floatscope._bench.catalogue import MODELS, ModelSpec

__all__ = ["Training"]

_INPUTS, _CLASSES = 784, 10
_BATCHES = 4
_copies = itertools.count()


class Block(nn.Module):
    """Pre-norm attention and MLP; [batch, time, width] to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(-2))
        hidden = functional.gelu(self.up(self.norm_mlp(x)), approximate="tanh")
        return x + self.down(hidden)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """GPT-2's shape: learned positions, tied embedding. Loss of predicting ``targets``, both int64 [batch, time]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.width)
        self.position = nn.Embedding(spec.context, spec.width)
        self.blocks = nn.ModuleList(Block(spec.width, spec.heads) for _ in range(spec.depth))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    """Two hidden layers. Loss of classifying fp32 [batch, 784] as int64 [batch]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(_INPUTS, spec.width),
            nn.ReLU(),
            nn.Linear(spec.width, spec.width),
            nn.ReLU(),
            nn.Linear(spec.width, _CLASSES),
        )

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.layers(inputs), targets)


class Training:
    """One model with its optimizer (fused AdamW on fp32 weights) and a few random batches on the device.

    On a GPU under bf16 autocast. Nothing in a step waits for the device. ``compile_mode`` is one of torch.compile's, ""
    for eager; compilation happens in the first step, so whatever is attached before is compiled in.
    """

    def __init__(self, name: str, device: torch.device, compile_mode: str = "") -> None:
        spec = MODELS[name]
        torch.manual_seed(0)
        self.device = device
        with device:
            self.model: nn.Module = Decoder(spec) if spec.depth else Mlp(spec)
            batches = [_batch(spec) for _ in range(_BATCHES)]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.before_optimizer: Callable[[], None] = _nothing
        """Called between the backward pass and the optimizer."""
        self._batches = itertools.cycle(batches)
        self.compiled = bool(compile_mode)
        self._captured = compile_mode == "reduce-overhead"
        self._forward: Callable[..., torch.Tensor] = self.model
        if compile_mode:
            _own_code(self.model)
            self._forward = torch.compile(self.model, mode=compile_mode)

    def step(self) -> torch.Tensor:
        """Forward, backward, update; returns the loss, still on its way."""
        if self._captured:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with self._autocast():
            loss = self._forward(*next(self._batches))
        loss.backward()  # type: ignore[no-untyped-call]
        self.before_optimizer()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else contextlib.nullcontext()


def _batch(spec: ModelSpec) -> tuple[torch.Tensor, torch.Tensor]:
    if not spec.depth:
        return torch.randn(spec.batch, _INPUTS), torch.randint(0, _CLASSES, (spec.batch,))
    tokens = torch.randint(0, spec.vocabulary, (spec.batch, spec.context + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _own_code(model: nn.Module) -> None:
    """Give ``model`` a forward function of its own.

    Dynamo keeps what it compiled with the code object, and its guards do not look at hooks: a second model of the same
    class would silently run the first one's graph, without the hooks of its own.
    """
    kind = type(model)
    code = kind.forward.__code__
    own = types.FunctionType(code.replace(co_name=f"forward_{next(_copies)}"), kind.forward.__globals__)
    model.__class__ = type(kind.__name__, (kind,), {"forward": own})


def _nothing() -> None:
    pass
