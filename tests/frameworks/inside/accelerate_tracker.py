"""The tracker for Accelerate, in an environment that has it: ``pytest accelerate_tracker.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from floatscope import Scope, watch
from floatscope._attach import declared, loops
from floatscope._attach.discovery import Discovery
from floatscope._attach.frameworks import accelerate as attached
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._patches import active_patches
from floatscope.integrations._accelerator import Loop
from floatscope.integrations.accelerate import FloatscopeTracker

STEPS = 4


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    torch.set_num_threads(1)
    yield
    Guard.reraise = False
    AcceleratorState._reset_state(reset_partial_state=True)
    assert active_patches() == []


def watching(**options: object) -> tuple[FloatscopeTracker, MemorySink]:
    sink = MemorySink()
    return FloatscopeTracker(_sink=sink, overhead_budget=0, activations_every=1, **options), sink


def train(
    *trackers: FloatscopeTracker, saves: Path | None = None, loads: Path | None = None, precision: str = "no"
) -> tuple[nn.Module, list[float]]:
    """The weights after ``STEPS`` steps of two micro-batches, and each micro-batch's loss."""
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, mixed_precision=precision, log_with=list(trackers) or None
    )
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.randn(4 * STEPS, 8)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    accelerator.init_trackers("project", config={"learning_rate": 1e-2})
    if trackers:
        accelerator.register_for_checkpointing(*trackers)
    if loads is not None:
        accelerator.load_state(str(loads))
    losses = []
    for batch, wanted in data:
        with accelerator.accumulate(model):
            loss = (model(batch) - wanted).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if accelerator.sync_gradients:
            accelerator.log({"mine": float(len(losses)), "grad_norm": 7.0, "note": "text"})
            model.eval()
            with torch.no_grad():
                model(batch)  # an evaluation is no step
            model.train()
    if saves is not None:
        accelerator.save_state(str(saves))
    accelerator.end_training()
    return model, losses


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_every_step_and_layer_is_there_and_nothing_changes(precision: str) -> None:
    alone, _ = train(precision=precision)
    tracker, sink = watching()
    watched, losses = train(tracker, precision=precision)
    assert all(map(torch.equal, alone.state_dict().values(), watched.state_dict().values()))
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert sink.reason == "finished"
    assert set(sink.layers()) == {"0", "2"}
    executed = {o.kind: o.format for o in sink.layers()["2"].operands}
    assert executed["act"] == ("bf16" if precision == "bf16" else "fp32")
    means = [(losses[at] + losses[at + 1]) / 2 for at in range(0, 2 * STEPS, 2)]
    assert sink.scalar("loss") == sink.scalar("raw_loss") == pytest.approx(means)


def test_what_is_logged_belongs_to_the_step_that_was_done() -> None:
    tracker, sink = watching()
    train(tracker)
    assert sink.scalar("mine") == [2.0 * (step + 1) for step in range(STEPS)]
    assert sink.scalar("logged/grad_norm") == [7.0] * STEPS
    assert all(norm != 7.0 for norm in sink.scalar("grad_norm"))


def test_a_training_that_goes_on_from_a_saved_state_has_the_same_run(tmp_path: Path) -> None:
    first, _ = watching(run="mine")
    train(first, saves=tmp_path)
    second, sink = watching()
    train(second, loads=tmp_path)
    assert second._loop.training.run == "mine"
    assert [record.step for record in sink.records()] == list(range(STEPS, 2 * STEPS))


def test_an_attached_loop_that_goes_on_does_so_at_its_step(tmp_path: Path) -> None:
    seen = []
    for saves, loads in ((tmp_path, None), (None, tmp_path)):
        sink = MemorySink()
        loop = Loop({"_sink": sink, "overhead_budget": 0})
        loop.install()
        try:
            trained = train(saves=saves, loads=loads)  # kept: a model that is gone ends its scope
        finally:
            loop.remove()
        seen.append([record.step for record in sink.records()])
        del trained
    assert seen == [list(range(STEPS)), list(range(STEPS, 2 * STEPS))]


def test_several_models_are_one_run_as_in_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink()
    scopes: list[Scope] = []

    def watched(model: nn.Module, **options: Any) -> Scope:  # noqa: ANN401
        scopes.append(watch(model, _sink=sink, overhead_budget=0, **options))
        return scopes[-1]

    discovery = Discovery(watched)
    monkeypatch.setattr(loops, "_current", [discovery])
    discovery.install()
    loop = Loop({})
    loop.install()
    try:
        accelerator = Accelerator(cpu=True)
        made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
        optimizers = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in (made, judged)]
        first, other, *optimizers = accelerator.prepare(made, judged, *optimizers)
        for _ in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
                accelerator.backward(other(first(torch.ones(2, 4))).mean())
                optimizer.step()
    finally:
        loop.remove()
        discovery.remove()
        for scope in scopes:
            scope.close()
        declared.forget()
    assert loop.training.run is None
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert set(sink.layers()) == {"Linear_0", "Linear_1"}
    assert all(loss is not None for name in ("loss", "loss/1") for loss in sink.scalar(name))


def test_with_the_tracker_the_first_of_several_models_is_watched() -> None:
    tracker, sink = watching()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    made, judged = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-2) for model in (made, judged)]
    first, other, *optimizers = accelerator.prepare(made, judged, *optimizers)
    for _ in range(STEPS):
        accelerator.backward(other(first(torch.ones(2, 4))).mean())
        for optimizer in optimizers:
            optimizer.step()
    accelerator.end_training()
    tracker.finish()
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert {layer.parameters for layer in sink.layers().values()} == {4 * 4 + 4}


def test_a_model_that_is_prepared_before_its_optimizer_is_watched_and_its_loss_may_be_logged() -> None:
    tracker, sink = watching()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    model = accelerator.prepare(nn.Linear(4, 1))
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=1e-2))
    accelerator.init_trackers("project")
    for step in range(STEPS):
        accelerator.backward(model(torch.ones(2, 4)).mean())
        optimizer.step()
        if step % 2:
            accelerator.log({"loss": 100.0 + step}, step=50 * step)
    accelerator.end_training()
    assert [record.step for record in sink.records()] == list(range(STEPS))
    own = sink.scalar("raw_loss")
    assert sink.scalar("loss") == [own[0], 101.0, own[2], 103.0]


def test_attached_twice_is_attached_once() -> None:
    tracker, sink = watching()
    loop = attached.on_import(accelerate)
    try:
        train(tracker)
    finally:
        loop.remove()
    assert len(sink.records()) == STEPS
    assert loop.training.run is None


def test_what_makes_no_sense_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="gradients_every"):
        FloatscopeTracker(gradient_every=1)
