"""What is read in a step, what that costs, and what the server's words and the user's code have to do with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Alert, Config, Scope, _meter, wire
from floatscope._alert import Reaction, no_reaction
from floatscope._device_clock import DeviceClock, reading_of
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._sampling import Sampling, Wanted

Attach = Callable[..., tuple[Scope, MemorySink]]
HOST, CARD = torch.device("cpu"), torch.device("cuda")
ALERT = wire.Alert(id=3, kind="nonfinite", severity="critical", step=8, reason="loss", message="NaN", rank=1)


def _sampling(device: torch.device = HOST, **options: int) -> Sampling:
    return Sampling(Config(overhead_budget=0, **options), device, no_reaction)  # type: ignore[arg-type]


def _events(sink: MemorySink, kind: str) -> list[wire.Event]:
    return [event for record in sink.records() for event in record.events if event.kind == kind]


def test_intervals_are_those_of_the_options() -> None:
    sampling = _sampling(gradients_every=2, activations_every=3, weights_every=0, histograms_every=4)
    read = [sampling.wanted(step) for step in range(13)]
    assert [step for step, wanted in enumerate(read) if wanted.gradients] == [0, 2, 4, 6, 8, 10, 12]
    assert [step for step, wanted in enumerate(read) if wanted.activations] == [0, 3, 6, 9, 12]
    assert [step for step, wanted in enumerate(read) if wanted.histograms] == [0, 4, 8, 12]
    assert not any(wanted.weights or wanted.spare for wanted in read)


def test_a_focus_reads_all_that_is_not_switched_off_and_ends() -> None:
    sampling, sink = _sampling(activations_every=100, weights_every=0), MemorySink()
    sink.said.append(wire.Focus(steps=3))
    told = []
    for step in range(1, 7):
        wanted = sampling.wanted(step)
        told.append((wanted, [event.detail["state"] for event in sampling.end_step(step, wanted, sink)]))
    everything = Wanted(gradients=True, activations=True, weights=False, updates=True, histograms=True, everything=True)
    rest = Wanted(gradients=True, activations=False, weights=False, updates=False, histograms=False)
    assert told == [
        (rest, ["begin"]),
        (everything, []),
        (everything, []),
        (everything, ["end"]),
        (rest, []),
        (rest, []),
    ]


def test_a_second_focus_makes_it_longer_and_none_is_endless() -> None:
    sampling, sink = _sampling(), MemorySink()
    sink.said += [wire.Focus(steps=2), wire.Focus(steps=1), wire.Focus(steps=1 << 60), wire.Focus(steps=-5)]
    events = sampling.end_step(1, sampling.wanted(1), sink)
    assert [event.detail["steps"] for event in events] == [2, 1, wire.MAX_FOCUS_STEPS]
    for step in range(2, wire.MAX_FOCUS_STEPS + 2):
        assert sampling.wanted(step).activations
        sampling.end_step(step, sampling.wanted(step), sink)
    assert not sampling.wanted(wire.MAX_FOCUS_STEPS + 2).activations


def test_slow_steps_on_a_card_have_spare_histograms_of_gradients_alone() -> None:
    sampling = _sampling(CARD, activations_every=10, histograms_every=10)
    gradients = Wanted(gradients=True, activations=False, weights=False, updates=False, histograms=False)
    assert sampling.wanted(1) == gradients
    sampling._typical_s = 0.3
    assert sampling.wanted(1) == gradients._replace(histograms=True, spare=True)
    assert not sampling.wanted(10).spare
    for other in (_sampling(HOST), _sampling(CARD, flight_recorder_steps=0), _sampling(CARD, histograms_every=0)):
        other._typical_s = 0.3
        assert not any(other.wanted(step).spare for step in range(20))


def test_time_inside_guards_is_charged_once() -> None:
    outer, inner, free = Guard("a", charge="gradients"), Guard("b", charge="weights"), Guard("c")
    _meter.drain()

    def spin(nanoseconds: int) -> None:
        end = perf_counter_ns() + nanoseconds
        while perf_counter_ns() < end:
            pass

    begin = perf_counter_ns()
    with outer:
        spin(2_000_000)
        with inner, free:
            spin(3_000_000)
    whole = 1e-9 * (perf_counter_ns() - begin)
    spent = _meter.drain()
    assert spent["gradients"] >= 0.002
    assert spent["weights"] >= 0.003
    assert 0.005 <= sum(spent.values()) <= whole
    assert _meter.drain() == dict.fromkeys(_meter.CHARGES, 0.0)


def test_an_exception_ends_the_charge_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "reraise", False)
    with Guard("a", charge="step"):
        raise ValueError("swallowed")
    assert _meter._open == []


def test_every_charge_is_met_in_a_training(attach: Attach) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, _ = attach(model, optimizer, activations_every=1, weights_every=1)
    _meter.drain()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    spent = _meter.drain()
    scope.step()
    assert min(spent[charge] for charge in ("gradients", "activations", "weights", "updates")) > 0
    assert _meter.drain()["step"] > 0
    assert _meter._open == []


class _Event:
    """As torch.cuda.Event: ``passed`` says whether the card has come so far."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms
        self.passed = False

    def record(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, end: _Event) -> float:
        assert self.passed
        assert end.passed
        return end.at_ms - self.at_ms


class _Events:
    def __init__(self) -> None:
        self.made: list[_Event] = []

    def __call__(self) -> _Event:
        self.made.append(_Event(1.5 * len(self.made)))
        return self.made[-1]


def _clock() -> tuple[DeviceClock, _Events]:
    events = _Events()
    return DeviceClock(events, stream=lambda device: None), events  # type: ignore[arg-type, return-value]


def test_the_cards_time_is_taken_when_it_has_passed_and_only_where_wanted() -> None:
    clock, events = _clock()
    with clock.around(CARD, "grad", histogram=True):
        pass
    assert events.made == []
    clock.start_step(wanted=True)
    with clock.around(HOST, "grad", histogram=True):
        pass
    for kind in ("grad", "act", "act_grad"):
        with clock.around(CARD, kind, histogram=False):
            pass
    clock.start_step(wanted=False)
    assert clock.seconds == {}
    for event in events.made[:-1]:
        event.passed = True
    clock.start_step(wanted=False)
    assert clock.seconds == {}
    events.made[-1].passed = True
    clock.start_step(wanted=False)
    assert clock.seconds == {("gradients", False): pytest.approx(0.0015), ("activations", False): pytest.approx(0.003)}


def test_a_card_that_never_comes_so_far_costs_no_memory() -> None:
    clock, events = _clock()
    for _ in range(1000):
        clock.start_step(wanted=True)
        with clock.around(CARD, "grad", histogram=False):
            pass
    assert len(events.made) < 100


def test_host_time_is_free_while_the_card_is_behind() -> None:
    clock, events = _clock()
    assert clock.caught_up()  # nobody has marked anything
    clock.mark(CARD)
    assert not clock.caught_up()
    assert clock.caught_up()  # a mark counts once
    clock.mark(CARD)
    events.made[0].passed = True
    assert clock.caught_up()
    clock.mark(HOST)
    assert len(events.made) == 1


def test_what_the_host_does_counts_as_far_as_the_card_waits_for_it() -> None:
    sampling, sink = _sampling(CARD), MemorySink()
    sampling.clock, events = _clock()
    for step in range(200):
        sampling.mark()
        events.made[0].passed = step >= 100
        with Guard("a", charge="step"):
            end = perf_counter_ns() + 200_000
            while perf_counter_ns() < end:
                pass
        sampling.end_step(step, sampling.wanted(step), sink)
        if step == 99:
            assert sampling._governor.share < 1e-3
    assert sampling._governor.share > 0.1


def test_the_card_is_asked_in_every_fourth_step_once_the_first_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling, sink = _sampling(CARD), MemorySink()
    sampling.clock, events = _clock()
    asked: list[int] = []
    mark = sampling.clock.mark

    def counted(device: torch.device) -> None:
        asked.append(len(ended))
        mark(device)

    ended: list[int] = []
    monkeypatch.setattr(sampling.clock, "mark", counted)
    for step in range(60):
        sampling.mark()
        events.made[0].passed = step not in asked  # where nobody asks, nothing is concluded
        sampling.end_step(step, sampling.wanted(step), sink)
        ended.append(step)
    assert asked[:16] == list(range(16))
    assert {later - earlier for earlier, later in pairwise(asked[20:])} == {4}
    assert sampling._exposed < 0.01


def test_a_reading_costs_more_of_the_card_than_its_launches() -> None:
    sampling, sink = _sampling(CARD, activations_every=0, weights_every=0, updates_every=0), MemorySink()
    sampling.clock, events = _clock()
    sampling.clock.seconds = {("gradients", histograms): 0.5 for histograms in (False, True)}
    for step in range(40):
        sampling.mark()
        events.made[0].passed = False
        sampling.end_step(step, sampling.wanted(step), sink)
    gradients, _ = sampling._governor._samples["gradients"].costs()
    assert gradients == pytest.approx(1.25 * 0.5, rel=1e-2)


@pytest.mark.parametrize("kind", wire.KINDS)
def test_every_kind_of_tensor_belongs_to_a_reading(kind: str) -> None:
    assert reading_of(kind) in {"gradients", "activations", "weights", "updates"}


def test_an_alert_is_handed_over_at_the_end_of_the_next_step(attach: Attach) -> None:
    heard: list[Alert] = []
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, on_alert=heard.append)
    for step in range(3):
        if step == 1:
            sink.said.append(ALERT)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        assert len(heard) == (step == 2)
        scope.step()
    assert heard == [Alert(id=3, kind="nonfinite", severity="critical", step=8, reason="loss", message="NaN", rank=1)]
    (event,) = _events(sink, "action")
    assert (event.step, event.detail) == (2, {"alert": 3, "kind": "nonfinite", "ok": True})


def test_the_users_code_may_end_the_training(attach: Attach) -> None:
    def stop(alert: Alert) -> None:
        raise KeyboardInterrupt

    scope, sink = attach(nn.Linear(4, 2), on_alert=stop)
    sink.said.append(ALERT)
    with pytest.raises(KeyboardInterrupt):
        scope.step()


def test_what_the_users_code_raises_is_logged_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    def fail(alert: Alert) -> None:
        raise LookupError("x" * 1000)

    reaction = Reaction(fail)
    reaction.take(ALERT)
    with caplog.at_level(logging.ERROR, "floatscope"):
        reaction.react(9)
    (event,) = reaction.events
    assert (event.step, event.detail["ok"]) == (9, False)
    assert len(str(event.detail["error"])) == 400
    assert "on_alert raised for alert 3 (nonfinite)" in caplog.text


def test_alerts_that_nobody_takes_up_do_not_pile_up() -> None:
    taken: list[int] = []
    reaction = Reaction(lambda alert: taken.append(alert.id))
    for number in range(1000):
        reaction.take(wire.Alert(id=number, kind="k", severity="warning", step=0, reason="r", message="m"))
    reaction.react(0)
    assert taken == list(range(936, 1000))


def test_without_a_callback_nothing_is_recorded(attach: Attach) -> None:
    scope, sink = attach(nn.Linear(4, 2))
    sink.said.append(ALERT)
    for _ in range(3):
        scope.step()
    assert _events(sink, "action") == []


@pytest.mark.parametrize("given", [None, "print", 3])
def test_on_alert_must_be_something_to_call(given: object) -> None:
    with pytest.raises(ValueError, match="on_alert: expected something to call"):
        floatscope.watch(nn.Linear(4, 2), on_alert=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [-0.1, 1, True, "1 %", None])
def test_a_budget_is_a_share(given: object) -> None:
    with pytest.raises(ValueError, match="overhead_budget: expected a share from 0 to 1"):
        Config(overhead_budget=given)  # type: ignore[arg-type]


def test_a_model_that_costs_too_much_to_read_is_read_less_often(
    attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "floatscope")
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, overhead_budget=1e-4)
    for _ in range(120):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        scope.step()
    changes = _events(sink, "sampling")
    assert changes
    assert "may cost 0.01 %" in str(changes[0].detail["because"])
    seen = [record.step for record in sink.records() if any(rows.kind == "grad" for rows in record.summaries)]
    last = [event for event in changes if event.detail["kind"] == "gradients"][-1]
    every = int(str(last.detail["every"]))
    assert every > 1
    assert [step for step in seen if step > last.step] == [n for n in range(last.step + 1, 120) if n % every == 0]
    assert sink.cost is not None
    assert sink.cost.every["gradients"] == every
    assert sink.cost.share > sink.cost.budget == 1e-4
    assert sink.cost.limit
    told = [record for record in caplog.records if "are read every" in record.message]
    assert len(told) == len(changes)
    (warning,) = [record for record in told if record.levelno == logging.WARNING]
    assert "gradients are read every" in warning.message
    assert "not every step: the agent costs" in warning.message
    assert "overhead_budget=0" in warning.message
    assert {record.levelno for record in told} == {logging.INFO, logging.WARNING}


def test_a_look_closer_is_said_in_the_cost(attach: Attach) -> None:
    scope, sink = attach(nn.Linear(4, 2))
    sink.said.append(wire.Focus(steps=100))
    for _ in range(40):
        scope.step()
    assert sink.cost is not None
    assert sink.cost.limit == "looking closer for 69 more steps"


def test_the_end_of_a_short_run_hands_its_cost_over(attach: Attach) -> None:
    model = nn.Linear(4, 2)
    scope, sink = attach(model, overhead_budget=0.01, activations_every=4)
    for _ in range(5):
        scope.step()
    told = [sink.cost]
    scope.close()
    told.append(sink.cost)
    before, after = told
    assert before is None
    assert after is not None
    assert after.share > 0
    assert after.every["activations"] == 4


def test_a_run_of_which_nothing_was_measured_tells_no_cost(attach: Attach) -> None:
    scope, sink = attach(nn.Linear(4, 2))
    scope.step()
    scope.close()
    assert sink.cost is None
