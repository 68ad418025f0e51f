"""Closer looks: what they add to the intervals, who begins them, and what they may cost in an hour."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from floatscope import Scope, wire
from floatscope._looks import STEPS_AFTER_SKIP, STEPS_AFTER_TROUBLE, STEPS_AN_HOUR, Looks
from floatscope._memory import MemorySink
from floatscope._record import StepRecord, SummaryRows, Trouble
from floatscope._trouble import Watch

Attach = Callable[..., tuple[Scope, MemorySink]]
BUDGET = 0.01
INTERVALS = [f"{kind}_every" for kind in wire.READINGS]


def trouble(step: int = 1000, *, skipped: bool = False, first: bool = True, shown: bool = False) -> Trouble:
    return Trouble(step=step, skipped=skipped, first=first, shown=shown)


def spend(looks: Looks, seconds: float = 0.0) -> int:
    """Steps until no look is left, each with so much of the agent's own time."""
    steps = 0
    while looks.left:
        looks.end_step(seconds)
        steps += 1
    return steps


def test_trouble_begins_a_look_at_everything() -> None:
    looks = Looks(BUDGET)
    assert looks.kinds() == frozenset()
    told = looks.notice(trouble(), 0.0)
    assert told == {"state": "begin", "steps": STEPS_AFTER_TROUBLE, "because": "step 1000 was not finite"}
    assert looks.kinds() == frozenset(wire.READINGS)
    assert looks.layers() == ()
    assert spend(looks) == STEPS_AFTER_TROUBLE
    assert looks.kinds() == frozenset()


def test_it_ends_when_a_step_in_trouble_was_read() -> None:
    looks = Looks(BUDGET)
    looks.notice(trouble(), 0.0)
    looks.end_step(0.0)
    # What a scaler catches meanwhile is not what the look is for.
    assert looks.notice(trouble(1002, skipped=True, shown=True), 1.0) is None
    assert looks.left == STEPS_AFTER_TROUBLE - 1
    assert looks.notice(trouble(1003, shown=True), 1.0) is None
    assert looks.left == 0


def test_trouble_that_was_read_or_goes_on_begins_none() -> None:
    looks = Looks(BUDGET)
    assert looks.notice(trouble(shown=True), 0.0) is None
    assert looks.notice(trouble(first=False), 0.0) is None
    assert looks.left == 0


def test_a_scaler_that_looks_for_its_level_begins_none_and_later_a_short_one() -> None:
    looks = Looks(BUDGET, first_step=100)
    assert looks.notice(trouble(149, skipped=True), 0.0) is None
    assert looks.notice(trouble(150, skipped=True), 0.0) is not None
    assert looks.left == STEPS_AFTER_SKIP
    assert looks.notice(trouble(110), 0.0) is not None
    assert looks.left == STEPS_AFTER_TROUBLE


def test_an_hour_has_so_many_steps() -> None:
    looks = Looks(0.0)
    steps = 0
    for second in range(3600):
        looks.notice(trouble(), float(second))
        steps += spend(looks, seconds=100.0)  # without a budget time does not count
    assert steps == STEPS_AN_HOUR
    assert looks.notice(trouble(), 3600.0) is not None
    assert looks.left == STEPS_AFTER_TROUBLE


def test_an_hour_has_so_much_of_the_agents_own_time() -> None:
    looks = Looks(BUDGET)
    spent = 0.0
    for second in range(3600):
        looks.notice(trouble(), float(second))
        spent += 2.0 * spend(looks, seconds=2.0)
    assert BUDGET * 3600 <= spent < BUDGET * 3600 + 2.0
    assert looks.notice(trouble(), 3601.0) is not None


def test_a_second_trouble_makes_a_look_no_shorter() -> None:
    looks = Looks(BUDGET)
    looks.notice(trouble(), 0.0)
    for _ in range(100):
        looks.end_step(0.0)
    assert looks.notice(trouble(1100, skipped=True), 1.0) is None
    assert looks.left == STEPS_AFTER_TROUBLE - 100
    assert looks.notice(trouble(1101), 1.0) is not None
    assert looks.left == STEPS_AFTER_TROUBLE


def test_what_was_asked_for_adds_up_kind_by_kind() -> None:
    looks = Looks(BUDGET)
    assert looks.ask(wire.Focus(steps=3, kinds=("activations", "color"), layers=("a.b", "c"))) == {
        "state": "begin",
        "steps": 3,
        "kinds": "activations",
        "layers": "a.b, c",
    }
    assert looks.ask(wire.Focus(steps=3, kinds=("color",))) is None
    assert (looks.kinds(), looks.layers()) == (frozenset({"activations"}), ("a.b", "c"))
    looks.ask(wire.Focus(steps=2, kinds=("weights",)))
    assert (looks.kinds(), looks.layers()) == (frozenset({"activations", "weights"}), ("a.b", "c"))
    looks.ask(wire.Focus(steps=1, kinds=("activations",), layers=("c", "d")))
    assert looks.layers() == ("a.b", "c", "d")
    looks.ask(wire.Focus(steps=1))
    assert (looks.kinds(), looks.layers()) == (frozenset(wire.READINGS), ())
    looks.end_step(0.0)
    assert (looks.kinds(), looks.layers()) == (frozenset({"activations", "weights"}), ("a.b", "c"))
    for _ in range(100):
        looks.ask(wire.Focus(steps=1))
    assert looks.left == 2, "the shortest of too many go first"


def _record(
    step: int,
    *kinds: str,
    loss: float = 1.0,
    nans: int = 0,
    skipped: float | None = None,
    raw: float = 0.0,
    everything: bool = False,
) -> StepRecord:
    fields: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "nans": np.array([0, nans]),
        "infs": np.array([0, 0]),
    }
    rows = tuple(SummaryRows(kind=kind, layers=np.array([0, 1], "u4"), fields=fields) for kind in kinds)
    scalars = {"loss": loss, "raw_loss_nonfinite": raw} | ({} if skipped is None else {"skipped": skipped})
    return StepRecord(step=step, scalars=scalars, summaries=rows, everything=everything)


def test_of_steps_in_trouble_the_first_is_told_and_those_that_show_more() -> None:
    watch = Watch()
    records = [
        _record(0, "grad"),
        _record(1, "grad", nans=3),
        _record(2, "grad", nans=3),
        _record(3, "grad", "act", nans=3),
        _record(4, "grad"),
        _record(5, "grad", "act"),
        _record(6, "grad", skipped=1.0),
        _record(7, "grad", "act", skipped=1.0, loss=math.nan),
        _record(8, skipped=0.0),
        _record(9, raw=1.0),
        _record(10, "grad", raw=1.0),
        _record(11, "grad", raw=1.0, everything=True),
    ]
    assert [told for record in records if (told := watch.see(record)) is not None] == [
        trouble(1),
        trouble(3, first=False, shown=True),
        trouble(6, skipped=True),
        trouble(7, first=False, shown=True),
        trouble(9),
        trouble(11, first=False, shown=True),
    ]


@pytest.mark.parametrize("options", [{}, {"activations_every": 0}, dict.fromkeys(INTERVALS, 0)], ids=len)
def test_a_training_that_is_broken_for_good_is_looked_at_for_one_step(attach: Attach, options: dict[str, int]) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, overhead_budget=0, first_step=1, **options)
    watch, looked = Watch(), []
    for step in range(1, 9):
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), math.nan)).sum()
        loss.backward()
        optimizer.step()
        scope.step(loss=loss)
        (record,) = (record for record in sink.records() if record.step == step)
        looked.append(record.everything)
        if (told := watch.see(record)) is not None:
            sink.said.append(told)
    # What a record shows is known at the end of the next step, and acted on in the one after that.
    assert looked == [False, False, True, True, False, False, False, False]


def test_outputs_of_some_layers_are_read_where_nothing_is_due(attach: Attach) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=3, overhead_budget=0, first_step=1)
    sink.said.append(wire.Focus(steps=4, kinds=("activations",), layers=("1", "nobody")))
    for _ in range(4):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        scope.step()
    layers = ("0", "1.0", "1.1", "2")
    seen = [
        [sink.row(step, kind, layer) is not None for layer in layers]
        for step in (1, 2, 3)
        for kind in ("act", "act_in", "act_grad")
    ]
    nothing, some, everything = [False] * 4, [False, True, True, False], [True] * 4
    assert seen == [nothing] * 3 + [some] * 3 + [everything] * 3
