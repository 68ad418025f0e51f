"""What is not observed is named, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
        self.used = nn.Linear(2, 2)
        self.late = nn.Linear(2, 2)
        self.deep = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(self.frozen(x))
        if self.deep:
            out = self.late(out)
        return out


def test_reasons_travel_when_they_change_and_not_more_often_than_every_100_steps(attach: Attach) -> None:
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer)
    for step in range(320):
        model.deep = step >= 30
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scope.step()
    events = [event for record in sink.records() for event in record.events]
    assert [(event.step, event.kind) for event in events] == [(0, "coverage"), (100, "coverage")]
    assert events[0].detail == {
        "trainable": 2,
        "observed": 1,
        "count/frozen": 1,
        "layers/frozen": "frozen",
        "count/no gradient was read": 1,
        "layers/no gradient was read": "late",
        "count/outputs not observed: its forward was never called": 1,
        "layers/outputs not observed: its forward was never called": "late",
    }
    assert events[1].detail == {"trainable": 2, "observed": 2, "count/frozen": 1, "layers/frozen": "frozen"}


def test_many_names_are_cut_at_a_whole_one(attach: Attach) -> None:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(500)))
    scope, sink = attach(model)
    scope.step()
    [event] = sink.records()[0].events
    assert event.detail["count/no gradient was read"] == 500
    names = event.detail["layers/no gradient was read"]
    assert isinstance(names, str)
    *some, rest = names.split(", ")
    assert some == [str(n) for n in range(len(some))]
    assert rest == "..."
    assert len(names) < 512


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_layers_are_said_to_be_compiled(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, _ = attach(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scope.step()
    coverage = scope.coverage
    assert (coverage["trainable"], coverage["observed"]) == (2, 2)
    assert coverage["reasons"] == {"outputs not observed: it is compiled": ["1"]}
