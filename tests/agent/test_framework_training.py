"""What all frameworks' callbacks share: when a step ends, what is logged to it, and who may attach."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from floatscope import Scope, watch
from floatscope._attach import declared, masking
from floatscope._memory import MemorySink
from floatscope.integrations._arguments import of_dataclass, plain
from floatscope.integrations._training import FrameworkTraining, check_options, claim, end_stale, is_claimed

Begin = Callable[..., tuple[FrameworkTraining, MemorySink]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """``begin(model, **options of begin)``, ended and forgotten afterwards."""
    begun: list[tuple[FrameworkTraining, nn.Module]] = []

    def begin_(model: nn.Module, **options: Any) -> tuple[FrameworkTraining, MemorySink]:  # noqa: ANN401
        sink = MemorySink()
        training = FrameworkTraining({"_sink": sink, "overhead_budget": 0.0})
        training.begin(model, **{"facts": {}, "arguments": {}, **options})
        begun.append((training, model))  # a model that is gone would end it before
        return training, sink

    yield begin_
    for training, _ in begun:
        training.end()
    declared.forget()


def model_and_step() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(2, 4)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return model, step


def test_what_is_logged_after_a_step_is_a_part_of_it(begin: Begin) -> None:
    model, step = model_and_step()
    training, sink = begin(model, first_step=7)
    for number in range(3):
        training.end_waiting()
        training.add_raw_loss(step())
        training.step_done()
        training.log({"loss": float(number), "grad_norm": 5.0, "note": "text", "flag": True})
    training.end()
    assert [record.step for record in sink.records()] == [7, 8, 9]
    assert sink.scalar("loss") == [0.0, 1.0, 2.0]
    assert sink.scalar("logged/grad_norm") == [5.0] * 3
    assert all(norm != 5.0 for norm in sink.scalar("grad_norm"))
    assert {"note", "flag"}.isdisjoint(sink.records()[0].scalars)
    assert training.steps == 10


def test_the_raw_loss_of_a_step_is_that_of_its_micro_batches(begin: Begin) -> None:
    model, step = model_and_step()
    training, sink = begin(model)
    for parts in ((1.0, 3.0), (2.0, float("nan"))):
        training.end_waiting()
        for part in parts:
            training.add_raw_loss(torch.tensor(part), 0.5)
        step()
        training.step_done(loss_too=True)
    training.end()
    first, second = sink.scalar("raw_loss")
    assert first == 2.0
    assert second != second
    assert sink.scalar("loss")[0] == 2.0
    largest = sink.scalar("raw_loss_max")
    assert largest[0] == 3.0
    assert largest[1] != largest[1]
    assert sink.scalar("micro_batches") == [2.0, 2.0]


def test_the_phases_of_each_step_are_told(begin: Begin) -> None:
    model, step = model_and_step()
    training, sink = begin(model)
    for _ in range(3):
        training.end_waiting()
        step()
        training.step_done()
    training.end()
    for record in sink.records():
        spent = {name: value for name, value in record.scalars.items() if name.startswith("phase/")}
        assert set(spent) == {f"phase/{name}_s" for name in ("data", "forward", "backward", "optimizer")}
        assert spent["phase/data_s"] == 0.0
        assert all(spent[f"phase/{name}_s"] > 0.0 for name in ("forward", "backward", "optimizer"))


def test_a_loop_that_says_nothing_ends_a_step_at_its_next_forward_pass(begin: Begin) -> None:
    model, step = model_and_step()
    training, sink = begin(model, ends_at_forward=True)
    for number in range(3):
        loss = step()
        training.add_raw_loss(loss)
        training.log({"mine": float(number)})
    training.end()
    assert [record.step for record in sink.records()] == [0, 1, 2]
    assert sink.scalar("mine") == [0.0, 1.0, 2.0]


def test_a_model_that_is_watched_stays_as_it_is(begin: Begin, attach: Callable[..., tuple[Scope, MemorySink]]) -> None:
    model, step = model_and_step()
    scope, sink = attach(model)
    training, other = begin(nn.Sequential(model))
    step()
    scope.step()
    training.step_done()
    assert not training.running
    assert (len(sink.records()), len(other.records())) == (1, 0)


def test_what_a_training_left_that_was_given_up_is_ended(begin: Begin) -> None:
    model, _ = model_and_step()
    first, sink = begin(model)
    end_stale(model)
    assert sink.reason == "failed"
    assert not first.running
    second, _ = begin(model)
    assert second.running


def test_a_checkpoint_is_noted_with_its_steps(begin: Begin) -> None:
    model, step = model_and_step()
    training, sink = begin(model)
    step()
    training.step_done()
    training.saved("checkpoint-1")
    [event] = [e for record in sink.records() for e in record.events if e.kind == "checkpoint"]
    assert (event.step, event.detail) == (0, {"name": "checkpoint-1", "steps": 1})


def test_the_name_to_go_on_with_gives_way_to_one_that_was_given(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOATSCOPE_RUN", raising=False)
    assert begin(nn.Linear(2, 1), run="kept")[0].run == "kept"
    monkeypatch.setenv("FLOATSCOPE_RUN", "given")
    assert begin(nn.Linear(2, 1), run="kept")[0].run == "given"


def test_secrets_among_arguments_are_masked(begin: Begin) -> None:
    begin(nn.Linear(2, 1), arguments={"tool": {"hub_token": "hf_abcdefghijklmnopqrstuv", "lr": 0.1}})
    told = declared.declared({})["arguments"]
    assert told == {"tool": {"hub_token": "***", "lr": 0.1}}


def test_a_claim_holds_for_what_wraps_the_model() -> None:
    model = nn.Linear(2, 1)
    assert not is_claimed(nn.Sequential(model))
    claim(model)
    assert is_claimed(nn.Sequential(model))


def test_disabled_nothing_is_watched_and_nothing_fails(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_DISABLED", "1")
    model, step = model_and_step()
    training, sink = begin(model, ends_at_forward=True)
    training.add_raw_loss(step())
    training.step_done()
    training.log({"loss": 1.0})
    training.saved("one")
    training.end()
    assert sink.records() == []


def test_options_are_checked_where_they_are_written() -> None:
    check_options({"run": "mine", "_sink": MemorySink()})
    with pytest.raises(ValueError, match="did you mean gradients_every"):
        check_options({"gradient_every": 1})


class Strategy(str, enum.Enum):  # noqa: UP042 (as transformers has them)
    STEPS = "steps"


@dataclass
class Arguments:
    strategy: Strategy = Strategy.STEPS
    folder: Path = Path("a/b")
    rate: float = float("inf")
    names: list[str] = field(default_factory=lambda: ["x"])
    model: object = field(default_factory=lambda: nn.Linear(1, 1))
    _hidden: int = 1


def test_arguments_become_plain_data() -> None:
    told = of_dataclass(Arguments())
    assert told == {"strategy": "steps", "folder": "a/b", "rate": "inf", "names": ["x"], "model": "Linear"}
    assert len(str(plain("a" * 100_000))) == 16 << 10
    # Cut to their length only where secrets are masked: half of one looks like none.
    for secret, half in (("hf_abcdefghijklmnopqrstuvwx", "hf_abc"), ("https://me:verysecret@host/x", "me:v")):
        for filled in range(470, 513):
            assert half not in str(masking.plain(plain({"prompt": f"{'w ' * (filled // 2)}{secret}"})))


def test_the_facts_of_a_framework_join_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}

    def sender(*given: Any) -> MemorySink:  # noqa: ANN401
        told.update(given[-1])
        return MemorySink()

    monkeypatch.setattr("floatscope._scope.sender_for", sender)
    model = nn.Linear(2, 1)
    watch(model, _facts={"declared_precision": "bf16"}).close()
    assert told == {"declared_precision": "bf16"}
