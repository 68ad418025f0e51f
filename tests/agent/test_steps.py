"""Where a step begins and ends, with and without ``scope.step``, and what a step's tensors are."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

from floatscope import Scope
from floatscope._memory import MemorySink

Attach = Callable[..., tuple[Scope, MemorySink]]


def make(lr: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.ones_(layer.weight)
    model = nn.Sequential(layer)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def backward(model: nn.Module, value: float) -> None:
    model.zero_grad()
    model(torch.full((1, 2), value)).sum().backward()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_without_scope_step_each_optimizer_step_is_a_record(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = make()
    scope, sink = attach(model, optimizer, activations_every=1)
    for value in (1.0, 2.0, 3.0, 4.0):
        backward(model, value)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert len(scope._recorder.parts) <= 7
    scope.close()
    assert [record.step for record in sink.records()] == [0, 1, 2, 3]
    assert sink.scalar("grad_norm")[2:] == [6.0, 8.0]
    assert all("loss" not in record.scalars for record in sink.records())
    # Only when the second step comes it is known that nobody ends the first.
    assert [sink.row(n, "act_in", "0")["absmax"] for n in (2, 3)] == [3.0, 4.0]  # type: ignore[index]
    [warning] = warnings_of(caplog)
    assert "Call scope.step(loss=loss) once after each optimizer.step()" in warning


@pytest.mark.parametrize("clip", [False, True])
def test_steps_that_a_scaler_skips_end_as_well(attach: Attach, clip: bool) -> None:
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    scope, sink = attach(model, optimizer, scaler=scaler, gradients_every=2)
    for value in (1.0, float("inf"), float("inf"), 2.0):
        model.zero_grad()
        scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    scope.close()
    assert sink.scalar("skipped") == [0.0, 1.0, 1.0, 0.0]
    assert sink.scalar("loss_scale") == [4.0, 4.0, 2.0, 1.0]


def test_two_optimizers_that_take_turns_share_a_step(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    scope, sink = attach(model, optimizers)
    for _ in range(3):
        backward(model, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        scope.step(loss=1.0)
    assert len(sink.records()) == 3
    assert not warnings_of(caplog)


def test_a_look_at_the_norm_after_the_update_is_no_new_step(attach: Attach, caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = make()
    scope, sink = attach(model, optimizer)
    for _ in range(2):
        backward(model, 1.0)
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        scope.step(loss=1.0)
    assert sink.scalar("grad_norm") == [2.0, 2.0]
    assert not warnings_of(caplog)


def test_whoever_ends_steps_again_is_listened_to(attach: Attach) -> None:
    model, optimizer = make()
    scope, sink = attach(model, optimizer)
    for ends in (False, False, True, True):
        backward(model, 1.0)
        optimizer.step()
        if ends:
            model(torch.ones(1, 2))
            scope.step(loss=1.0)
    # The third is ended by the forward pass that follows it; the user's own end comes after that.
    assert [record.scalars.get("loss") for record in sink.records()][-1] == 1.0
    assert sink.scalar("grad_norm")[:3] == [2.0, 2.0, 2.0]


def test_memory_is_bounded_without_any_step(attach: Attach) -> None:
    model, optimizer = make()
    scope, _ = attach(model, optimizer, activations_every=1)
    buffer = scope._recorder.buffer
    sizes = []
    for _ in range(6):
        backward(model, 1.0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        sizes.append((len(scope._recorder.parts), len(buffer.clip_coefficients)))
    assert len(set(sizes)) == 1
    assert buffer is scope._recorder.buffer


def test_the_smallest_clip_coefficient_of_a_step_counts(attach: Attach) -> None:
    model, optimizer = make()
    scope, sink = attach(model, optimizer)
    for limit in (1.0, 0.5, 100.0):
        backward(model, 1.0)
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    scope.step()
    assert sink.scalar("clip_coef") == [pytest.approx(0.25)]


def test_weights_are_those_that_the_forward_pass_used(attach: Attach) -> None:
    model, optimizer = make(lr=1.0)
    scope, sink = attach(model, optimizer, weights_every=1)
    for _ in range(2):
        backward(model, 1.0)
        optimizer.step()
        scope.step()
    scope.step()  # without an update
    assert [sink.row(n, "weight", "0")["sum"] for n in range(3)] == [4.0, 0.0, -4.0]  # type: ignore[index]


def test_weights_are_read_before_a_closure_changes_them(attach: Attach) -> None:
    model, _ = make()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=3)
    scope, sink = attach(model, optimizer, weights_every=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(1, 2)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    scope.step()
    row = sink.row(0, "weight", "0")
    assert row is not None
    assert (row["sum"], row["count"]) == (4.0, 4)


def test_scalars_named_like_ours_stay_the_users(attach: Attach) -> None:
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scope, sink = attach(model, optimizer, scaler=scaler)
    for _ in range(2):
        model.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scope.step(loss=1.0, grad_norm=77.0, lr=0.25, loss_scale=9.0, skipped=5.0, step_time_s=3.0)
    second = sink.records()[1].scalars
    assert {name: second[name] for name in ("grad_norm", "lr", "loss_scale", "skipped", "step_time_s")} == {
        "grad_norm": 77.0,
        "lr": 0.25,
        "loss_scale": 9.0,
        "skipped": 5.0,
        "step_time_s": 3.0,
    }
    ours = {name: second[f"floatscope/{name}"] for name in ("grad_norm", "lr", "loss_scale", "skipped")}
    assert ours == {"grad_norm": 2.0, "lr": 0.0, "loss_scale": 4.0, "skipped": 0.0}
    assert second["floatscope/step_time_s"] > 0
    row = sink.row(1, "grad", "0")
    assert row is not None
    assert (row["absmax"], row["scale"]) == (1.0, 4.0)
