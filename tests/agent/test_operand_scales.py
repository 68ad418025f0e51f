"""A scale that makes no sense costs the reading its scale, and nothing else."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from floatscope import Operand, Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]

X = torch.ones(2, 4)


class Casting(nn.Linear):
    scale: object = 1.0

    def floatscope_operands(self) -> Mapping[str, Operand]:
        return {"act_in": Operand(format="e4m3fn", scale=self.scale, scaling="dynamic")}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (0.0, "positive finite number, got 0.0"),
        (-2, "positive finite number, got -2"),
        (math.nan, "positive finite number, got nan"),
        (math.inf, "positive finite number, got inf"),
        ("1", "a number or a tensor of one element, got str"),
        (torch.ones(4), r"got torch.float32 of shape \[4\] on cpu; scales of rows"),
        (torch.empty(0), r"of shape \[0\]"),
        (torch.ones((), dtype=torch.complex64), "got torch.complex64"),
        (torch.ones((), device="meta"), "on meta"),
    ],
)
def test_what_can_be_known_is_refused_when_it_is_made(scale: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Operand(format="e4m3fn", scale=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [torch.ones(4), 0.0])
def test_a_layer_that_makes_no_operand_is_read_without_a_cast(
    attach: Attach, scale: object, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Casting(4, 4))
    scope, sink = attach(model, activations_every=1)
    setattr(model[1], "scale", scale)  # noqa: B010
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            model(X).sum().backward()
            scope.step(loss=1.0)
    assert sink.scalar("loss") == [1.0, 1.0, 1.0]
    row = sink.row(2, "act_in", "1")
    assert row is not None
    assert row["count"] == 8
    assert [record.getMessage().count("layer 1:") for record in caplog.records] == [1]
    reasons = scope.coverage["reasons"]
    assert reasons["a scale that was announced is not one positive finite number"] == ["1"]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_value_that_arrives_later_is_left_out_of_its_row(
    attach: Attach, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Casting(4, 4))
    model[1].scale = torch.tensor(value)
    scope, sink = attach(model, activations_every=1)
    with caplog.at_level(logging.WARNING):
        for step in range(2):
            if step:
                model[1].scale = torch.tensor(2.0)
            model(X)
            scope.step()
        first, second = sink.row(0, "act_in", "1"), sink.row(1, "act_in", "1")
    assert first is not None
    assert second is not None
    assert first["count"] == 8
    assert math.isnan(first["scale"])
    assert math.isnan(first["under"])
    assert second["scale"] == 2.0
    assert [record.getMessage().count("layer 1: the scale of its act_in") for record in caplog.records] == [1]
