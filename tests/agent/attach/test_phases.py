"""Phases on a card: events at the right places, which are asked when they have passed and never waited for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from floatscope._phases import _MOST, DevicePhases, Mark
from floatscope._scope import Scope
from tests.agent.attach.conftest import Found


class Card:
    """Gives marks a millisecond apart, and passes them when it is told to."""

    def __init__(self) -> None:
        self.marks: list[Event] = []
        self.passes = False

    def mark(self) -> Mark:
        event = Event(self, float(len(self.marks)))
        self.marks.append(event)
        return event


class Event:
    def __init__(self, card: Card, at_ms: float) -> None:
        self.card, self.at_ms = card, at_ms

    def query(self) -> bool:
        return self.card.passes

    def synchronize(self) -> None:
        assert self.card.passes, "somebody waits"

    def elapsed_time(self, end_event: Event) -> float:
        return end_event.at_ms - self.at_ms


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """What every training is on."""
    card = Card()
    monkeypatch.setattr("floatscope._scope.marks_of", lambda parameters: card.mark)
    return card


def train(steps: int, micro_batches: int = 1) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        for _ in range(micro_batches):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_events_lie_between_the_phases_and_nobody_waits_for_them(found: Found, card: Card) -> None:
    train(1, micro_batches=2)
    card.passes = True
    # Of a step: two forward and backward passes, what comes before the optimizer, that, and what comes after it.
    (record,) = found.sink.records()
    spent = {name: record.scalars[f"phase/{name}_s"] for name in ("data", "forward", "backward", "optimizer")}
    assert spent == {"data": 0.0, "forward": 0.004, "backward": 0.002, "optimizer": 0.001}


def test_a_step_begins_where_the_one_before_has_ended(found: Found, card: Card) -> None:
    train(3)
    card.passes = True
    assert [
        sum(record.scalars[f"phase/{name}_s"] for name in ("data", "forward", "backward", "optimizer"))
        for record in found.sink.records()
    ] == pytest.approx([0.005, 0.005, 0.005])


def test_a_step_of_too_many_events_tells_none_and_the_next_one_does(found: Found, card: Card) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro_batches in (1, _MOST, 1):
        before = len(card.marks)
        for _ in range(micro_batches):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert len(card.marks) - before <= _MOST
    card.passes = True
    forward = found.sink.scalar("phase/forward_s")
    assert [spent is None for spent in forward] == [False, True, False]


def test_a_step_is_ready_when_the_card_has_passed_its_events(card: Card) -> None:
    phases = DevicePhases(["data", "forward"], [card.mark(), card.mark(), card.mark()])
    assert not phases.ready()
    card.passes = True
    assert phases.ready()
    assert phases.seconds() == {"data": 0.001, "forward": 0.001, "backward": 0.0, "optimizer": 0.0}


def test_an_epoch_that_ends_leaves_no_phase_behind(found: Found) -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()
    (scope,) = found.scopes
    assert isinstance(scope, Scope)
    assert scope._phases is not None
    assert scope._phases._within == ["data"], "the loader has said that it has no more"
    scope._phases.begin("backward")
    assert scope._phases._within == ["backward"]
