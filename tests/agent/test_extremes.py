"""Maxima that a module tells of what no hook sees."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from floatscope import Scope
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._operands import ExposesExtremes

Attach = Callable[..., tuple[Scope, MemorySink]]


class Attention(nn.Module):
    """Owns nothing and contains nothing; its logits never leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: object = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = x @ x.transpose(-1, -2)
        self.largest = logits.detach().abs().amax()
        out: torch.Tensor = logits.softmax(-1) @ x
        return out

    def floatscope_extremes(self) -> Mapping[str, torch.Tensor]:
        return {"attention_logits": self.largest}  # type: ignore[dict-item]


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), Attention())


def test_protocol() -> None:
    assert isinstance(Attention(), ExposesExtremes)
    assert not isinstance(nn.MultiheadAttention(2, 1), ExposesExtremes)


def test_the_largest_of_the_micro_batches_is_a_scalar(attach: Attach) -> None:
    model = make_model()
    nn.init.eye_(model[0].weight)  # type: ignore[arg-type]
    nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    scope, sink = attach(model, activations_every=2)
    for values in ((1.0, 3.0, 2.0), (9.0,), (1.0, math.nan, 2.0)):
        for value in values:
            model(torch.full((4, 2), value)).sum().backward()
        with torch.no_grad():
            model.eval()(torch.full((4, 2), 100.0))
            model.train()
        scope.step()
    first, second, third = sink.scalar("attention_logits_max/1")
    assert (first, second) == (18.0, None)
    assert third is not None
    assert math.isnan(third)


class Wrong(nn.Module):
    value: object = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def floatscope_extremes(self) -> Mapping[str, torch.Tensor]:
        return {"attention_logits": self.value}  # type: ignore[dict-item]


def test_something_that_is_no_number_costs_itself_alone(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    Guard.reraise = False
    caplog.set_level(logging.CRITICAL, "floatscope")
    wrong = Wrong()
    model = nn.Sequential(nn.Linear(2, 2), wrong)
    scope, sink = attach(model, activations_every=1)
    for value in (torch.ones(3), "large", None):
        wrong.value = value
        model(torch.ones(1, 2)).sum().backward()
        scope.step()
        assert sink.row(len(sink.pending) - 1, "act", "0") is not None
    assert sink.scalar("attention_logits_max/1") == [None] * 3
