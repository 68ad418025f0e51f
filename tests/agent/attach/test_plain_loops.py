"""Loops that know nothing of us: the model is found, steps end by themselves, the loss is that of the backward pass."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook as after_any_step
from torch.optim.optimizer import register_optimizer_step_pre_hook as before_any_step

import floatscope
from floatscope._memory import MemorySink
from tests.agent.attach.conftest import Found, waiting


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batch(step: int, micro: int = 0) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(100 * step + micro))


def ordinary(steps: int = 4) -> nn.Module:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return model


def accumulating() -> nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        for micro in range(3):
            model(batch(step, micro)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def closing() -> nn.Module:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for step in range(4):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch(step)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return model


def scaled(*, fused: bool = False, overflows: tuple[int, ...] = (1, 3)) -> nn.Module:
    model = network()
    last = model.get_parameter("2.weight")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(batch(step))
        # Infinite as scaled, in the last layer alone.
        infinite = [last.register_hook(lambda gradient: gradient * math.inf)] if step in overflows else []  # type: ignore[no-untyped-call]
        scaler.scale(out.float().square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        for hook in infinite:
            hook.remove()
    return model


def fused() -> nn.Module:
    return scaled(fused=True)


def adversarial() -> nn.Module:
    torch.manual_seed(0)
    made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
    d = torch.optim.Adam(judged.parameters(), lr=0.01)
    g = torch.optim.Adam(made.parameters(), lr=0.02)
    for step in range(4):
        d.zero_grad()
        judged(made(batch(step)).detach()).mean().backward()
        d.step()
        g.zero_grad()
        (2.0 - judged(made(batch(step))).mean()).backward()
        g.step()
    return nn.ModuleList([made, judged])


def twice_scaled() -> nn.Module:
    """Adversarial, each model with a scaler of its own: the judge overflows in step 1, the maker in 2, both in 4."""
    torch.manual_seed(0)
    made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
    d = torch.optim.Adam(judged.parameters(), lr=0.01)
    g = torch.optim.Adam(made.parameters(), lr=0.02)
    d_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    g_scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(6):
        for optimizer, scaler, loss_of, weight, overflows in (
            (d, d_scaler, lambda x: judged(made(x).detach()).mean(), judged.weight, (1, 4)),
            (g, g_scaler, lambda x: 2.0 - judged(made(x)).mean(), made.weight, (2, 4)),
        ):
            optimizer.zero_grad()
            infinite = [weight.register_hook(lambda gradient: gradient * math.inf)] if step in overflows else []  # type: ignore[no-untyped-call]
            scaler.scale(loss_of(batch(step))).backward()  # type: ignore[no-untyped-call]
            if optimizer is g:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            for hook in infinite:
                hook.remove()
    return nn.ModuleList([made, judged])


LOOPS = [ordinary, accumulating, closing, scaled, fused, adversarial, twice_scaled]


@pytest.mark.parametrize("train", LOOPS, ids=[train.__name__ for train in LOOPS])
def test_weights_are_bitwise_those_of_a_training_that_nobody_watches(train: Callable[[], nn.Module]) -> None:
    bare = train().state_dict()
    with waiting() as found:
        watched = train().state_dict()
    assert len(found.scopes) == 1
    assert all(torch.equal(bare[name], watched[name]) for name in bare)


def test_every_layer_and_step_of_an_ordinary_loop(found: Found) -> None:
    ordinary()
    records = found.sink.records()
    assert [record.step for record in records] == [0, 1, 2, 3]
    assert set(found.sink.layers()) == {"0", "2"}
    for step in range(4):
        for layer in ("0", "2"):
            assert found.sink.row(step, "grad", layer) is not None
    assert found.sink.row(0, "act", "0") is not None, "hooks were there in the first forward pass"
    expected = []
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        expected.append(loss.item())
        loss.backward()
        optimizer.step()
    assert found.sinks[0].scalar("loss") == pytest.approx(expected)
    assert all(value is not None and value >= 0 for value in found.sinks[0].scalar("phase/backward_s"))


def test_micro_batches_are_one_step(found: Found) -> None:
    accumulating()
    assert [record.step for record in found.sink.records()] == [0, 1, 2, 3]
    assert found.sink.scalar("micro_batches") == [3.0] * 4
    largest, mean = found.sink.scalar("raw_loss_max"), found.losses
    assert all(a is not None and b is not None and a >= b for a, b in zip(largest, mean, strict=True))
    coefficients = found.sink.scalar("clip_coef")
    norms = found.sink.scalar("grad_norm/framework")
    assert [c is not None and n is not None and c * n <= 0.1001 for c, n in zip(coefficients, norms, strict=True)]


def test_closures(found: Found) -> None:
    closing()
    assert [record.step for record in found.sink.records()] == [0, 1, 2, 3]
    assert None not in found.losses
    assert [step for step in range(4) if found.sink.row(step, "grad", "2") is None] == []
    for phase in ("forward", "backward", "optimizer"):
        assert all(spent is not None and spent > 0.0 for spent in found.sink.scalar(f"phase/{phase}_s"))


@pytest.mark.parametrize("train", [scaled, fused], ids=["plain", "fused"])
def test_skipped_steps_are_exactly_those_that_overflow(found: Found, train: Callable[[], nn.Module]) -> None:
    train()
    assert [record.step for record in found.sink.records()] == [0, 1, 2, 3, 4]
    assert found.sink.scalar("skipped") == [0.0, 1.0, 0.0, 1.0, 0.0]
    for step in (1, 3):
        broken = [
            layer
            for layer in ("0", "2")
            if (row := found.sink.row(step, "grad", layer)) is not None and row["infs"] + row["nans"]
        ]
        assert broken == ["2"]
    # What is scaled is not the loss.
    assert all(loss is not None and loss < 10 for loss in found.losses)
    scales = found.sink.scalar("loss_scale")
    assert scales == [1024.0, 1024.0, 512.0, 512.0, 256.0]


def test_two_optimizers_share_a_step_and_keep_their_losses(found: Found) -> None:
    adversarial()
    assert [record.step for record in found.sink.records()] == [0, 1, 2, 3]
    assert set(found.sink.layers()) == {"Linear_0", "Linear_1"}
    assert found.sink.scalar("lr") == [0.01] * 4
    assert found.sink.scalar("lr/1") == [0.02] * 4
    assert None not in found.losses
    assert all(loss is not None and loss > 1 for loss in found.sink.scalar("loss/1"))


def test_two_scalers_are_told_apart(found: Found) -> None:
    twice_scaled()
    records = found.sink.records()
    assert [record.step for record in records] == list(range(6))
    assert found.sink.scalar("loss_scale") == [1024.0, 1024.0, 512.0, 512.0, 512.0, 256.0]
    assert found.sink.scalar("loss_scale/1") == [64.0, 64.0, 64.0, 32.0, 32.0, 16.0]
    skips = [
        (event.step, event.detail["optimizer"], event.detail["scale"])
        for record in records
        for event in record.events
        if event.kind == "skipped"
    ]
    assert skips == [(1, 0, 1024.0), (2, 1, 64.0), (4, 0, 512.0), (4, 1, 32.0)]
    changes = [
        (event.step, event.detail.get("scaler", 0), event.detail["to"])
        for record in records
        for event in record.events
        if event.kind == "scale_changed"
    ]
    assert changes == [(2, 0, 512.0), (3, 1, 32.0), (5, 0, 256.0), (5, 1, 16.0)]
    for step, culprits in ((1, ["Linear_0"]), (2, ["Linear_1"]), (4, ["Linear_0", "Linear_1"])):
        broken = [
            layer
            for layer in ("Linear_0", "Linear_1")
            if (row := found.sink.row(step, "grad", layer)) is not None and row["infs"] + row["nans"]
        ]
        assert broken == culprits


def test_gradients_are_reported_without_the_scale_of_their_own_scaler(found: Found) -> None:
    made, judged = (nn.Linear(2, 1, bias=False) for _ in range(2))
    models = nn.ModuleDict({"made": made, "judged": judged})
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in (made, judged)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 4096.0)]
    for model, optimizer, scaler in zip(models.values(), optimizers, scalers, strict=True):
        scaler.scale(model(torch.tensor([[3.0, 5.0]])).sum()).backward()
        scaler.step(optimizer)
    for scaler in scalers:
        scaler.update()
    assert [record.step for record in found.sink.records()] == [0]
    for layer, scale in (("made", 8.0), ("judged", 4096.0)):
        grad, output = found.sink.row(0, "grad", layer), found.sink.row(0, "act_grad", layer)
        assert grad is not None
        assert output is not None
        assert (grad["absmax"], output["absmax"]) == (5.0, 1.0)
        assert (grad["scale"], output["scale"]) == (scale, scale)


def test_a_scaler_of_a_training_that_is_over_is_none_of_this_one(found: Found) -> None:
    before = torch.amp.GradScaler("cpu", init_scale=2.0)
    before.scale(torch.ones(1, requires_grad=True)).backward()  # type: ignore[no-untyped-call]
    scaled(overflows=())
    assert found.sink.scalar("loss_scale") == [1024.0] * 5
    assert not any("loss_scale/1" in record.scalars for record in found.sink.records())


def test_an_optimizer_that_steps_more_often_than_another(found: Found) -> None:
    torch.manual_seed(0)
    made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
    d = torch.optim.SGD(judged.parameters(), lr=0.01)
    g = torch.optim.SGD(made.parameters(), lr=0.01)
    for step in range(6):
        judged(made(batch(step))).mean().backward()
        d.step()
        if step % 3 == 2:
            g.step()
    found.scopes[0].close()
    # What the other one did last belongs to a step that never came.
    assert found.sink.scalar("lr") == [*[0.01] * 6, None]


def test_a_teacher_is_no_part_of_the_model(found: Found) -> None:
    model = network()
    teacher = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        (model(batch(step)) - teacher(batch(step))).square().mean().backward()
        optimizer.step()
    assert {layer.parameters for layer in found.sink.layers().values()} == {40, 9}
    assert len(found.scopes) == 1


def test_a_model_is_named_by_its_outermost_module_however_it_is_called(found: Found) -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

    task = Task()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
    task.net(batch(0)).mean().backward()
    optimizer.step()
    assert set(found.sink.layers()) == {"net.0", "net.2"}


def test_nothing_that_only_uses_a_model_is_a_run(found: Found) -> None:
    model = network()
    torch.optim.SGD(network().parameters(), lr=0.1)
    with torch.no_grad():
        model(batch(0))
    assert not found.scopes


def test_who_watches_by_code_is_left_alone(found: Found) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink = MemorySink()
    with floatscope.watch(model, optimizer, _sink=sink, overhead_budget=0.0) as scope:
        for step in range(3):
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
    assert not found.scopes
    assert [record.step for record in sink.records()] == [0, 1, 2]


def test_who_watches_by_code_later_goes_on_with_the_run(found: Found) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        model(batch(step)).mean().backward()
        optimizer.step()
    sink = MemorySink()
    scope = floatscope.watch(model, optimizer, _sink=sink, overhead_budget=0.0)
    model(batch(2)).mean().backward()
    optimizer.step()
    scope.step(loss=1.0)
    scope.close()
    assert found.sink.reason == "finished"
    assert [record.step for record in found.sink.records()] == [0, 1]
    assert [record.step for record in sink.records()] == [2]
    assert scope.config.run == found.scopes[0].config.run


class CountsByGroup(torch.optim.SGD):
    """As the fused ones of Apex and Transformer Engine do."""

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 (torch's)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "first"), [(torch.optim.AdamW, 3), (torch.optim.SGD, 0), (CountsByGroup, 3)], ids=["AdamW", "SGD", "group"]
)
def test_a_loop_that_resumes_goes_on_at_its_step_where_its_optimizer_counts(
    found: Found, kind: Callable[..., torch.optim.Optimizer], first: int
) -> None:
    model = network()
    optimizer = kind(model.parameters())
    for step in range(3):
        model(batch(step)).mean().backward()
        optimizer.step()
    again = network()
    resumed = kind(again.parameters())
    resumed.load_state_dict(optimizer.state_dict())
    again(batch(3)).mean().backward()
    resumed.step()
    assert [[record.step for record in sink.records()] for sink in found.sinks] == [[0, 1, 2], [first]]


def test_a_step_that_calls_the_step_of_its_class_above_is_one(found: Found) -> None:
    torch.optim.SGD(network().parameters())  # torch calls hooks from the steps of classes that it has met
    model = network()
    optimizer = CountsByGroup(model.parameters(), lr=0.01)
    for step in range(3):
        model(batch(step)).mean().backward()
        optimizer.step()
    assert [record.step for record in found.sink.records()] == [0, 1, 2]
    assert None not in found.losses


def test_adapters_that_are_added_later_are_seen(found: Found) -> None:
    model = network()
    first = torch.optim.SGD(model.parameters(), lr=0.01)
    model(batch(0)).mean().backward()
    first.step()
    adapter = nn.Linear(1, 1)
    model.add_module("adapter", adapter)
    second = torch.optim.SGD(adapter.parameters(), lr=0.01)
    model(batch(1)).mean().backward()
    second.step()
    assert [set(sink.layers()) for sink in found.sinks] == [{"0", "2"}, {"0", "2", "adapter"}]
    assert [[record.step for record in sink.records()] for sink in found.sinks] == [[0], [1]]
    assert found.scopes[0].config.run == found.scopes[1].config.run


def test_an_optimizer_that_nobody_saw_being_made_is_seen_when_it_steps(found: Found) -> None:
    model = network()
    optimizer = pickle.loads(pickle.dumps(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    for step in range(3):
        model(batch(step)).mean().backward()
        optimizer.step()
    assert [record.step for record in found.sink.records()] == [0, 1, 2]
    assert all(found.sink.row(step, "grad", "2") is not None for step in range(3))


def test_a_compiled_model_is_attached_to_before_it_is_compiled(found: Found) -> None:
    model = network()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        compiled(batch(step)).mean().backward()
        optimizer.step()
    assert [record.step for record in found.sink.records()] == [0, 1]
    assert set(found.sink.layers()) == {"0", "2"}
    assert not any("compiled before" in reason for reason in found.scopes[0].coverage["reasons"])
    torch.compiler.reset()


def test_trainings_in_threads_of_one_program_do_not_end_one_another(found: Found) -> None:
    """Torch goes through its hooks while a step runs: none may be added or removed for another training meanwhile."""
    inside, attached = threading.Event(), threading.Event()
    problems: list[Exception] = []

    def while_it_steps(*_: object) -> None:
        if threading.current_thread() is thread:
            inside.set()
            assert attached.wait(60)

    def other() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        # Not the last one: that goes through to the end of the table.
        hooks = (while_it_steps, lambda *_: None)
        handles = [register(hook) for register in (before_any_step, after_any_step) for hook in hooks]
        try:
            optimizer.step()
        except (RuntimeError, AssertionError) as error:
            problems.append(error)
        finally:
            for handle in handles:
                handle.remove()

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    # It is in its step, and nobody waits for its model any more.
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    found.scopes[-1].close()
    attached.set()
    thread.join(60)
    assert (len(found.scopes), problems) == (2, [])


def test_a_lazy_model_is_attached_to_once_it_has_a_shape(found: Found) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        model(batch(step)).mean().backward()
        optimizer.step()
    assert [record.step for record in found.sink.records()] == [0, 1]
    assert found.sink.layers()["0"].parameters == 15


def test_what_cannot_be_watched_is_said_and_the_training_goes_on(
    found: Found, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FLOATSCOPE_SERVER", "nonsense")
        ordinary()
    assert not found.scopes
    (said,) = [record.message for record in caplog.records if "not attached" in record.message]
    assert "expected http://HOST:PORT or https://HOST:PORT, got 'nonsense'; the program runs without telemetry" in said


def test_the_global_hook_is_gone_once_the_model_is_found(found: Found) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    model(batch(0))
    assert optimizer.param_groups
    assert not nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
