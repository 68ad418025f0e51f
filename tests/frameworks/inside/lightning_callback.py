"""The callback of Lightning's Trainer, in an environment that has it: ``pytest lightning_callback.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from floatscope._attach.frameworks.lightning import callbacks
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._patches import active_patches
from floatscope.integrations.lightning import FloatscopeCallback, _planned_steps

STEPS = 4


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    torch.set_num_threads(1)
    yield
    Guard.reraise = False
    assert active_patches() == []


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, *, manual: bool = False, breaks: int = -1) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 1)
        self.breaks = breaks

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, wanted = batch
        loss: torch.Tensor = (self.down(self.up(inputs).relu()) - wanted).square().mean()
        return loss

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        if number == self.breaks:
            raise RuntimeError("the user's own")
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:  # noqa: ANN401
        if self.automatic_optimization:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [torch.optim.SGD(part.parameters(), lr=1e-2) for part in (self.up, self.down)]


def fit(folder: Path, module: Module, *more: object, resumes: str | None = None, **options: object) -> pl.Trainer:
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randn(24, 8, generator=numbers)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)
    chosen: dict[str, Any] = {
        "max_steps": STEPS,
        "accelerator": "cpu",
        "accumulate_grad_batches": 1 if not module.automatic_optimization else 2,
        "log_every_n_steps": 1,
        "logger": False,
        "default_root_dir": str(folder),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    } | options
    trainer = pl.Trainer(callbacks=list(more), **chosen)
    trainer.fit(module, data, data, ckpt_path=resumes)
    return trainer


def watching(**options: object) -> tuple[FloatscopeCallback, MemorySink]:
    sink = MemorySink()
    return FloatscopeCallback(_sink=sink, overhead_budget=0, activations_every=1, **options), sink


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_every_step_and_layer_is_there_and_nothing_changes(tmp_path: Path, precision: str) -> None:
    alone, watched = Module(), Module()
    fit(tmp_path, alone, precision=precision, gradient_clip_val=0.5)
    callback, sink = watching()
    fit(tmp_path, watched, callback, precision=precision, gradient_clip_val=0.5)
    assert same_weights(alone, watched)
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert sink.reason == "finished"
    layers = sink.layers()
    assert set(layers) == {"up", "down"}
    executed = {o.kind: o.format for o in layers["down"].operands}
    assert executed["act"] == ("bf16" if precision == "bf16-mixed" else "fp32")
    assert all(norm and norm > 0.5 for norm in sink.scalar("grad_norm"))
    assert all(share and share < 1 for share in sink.scalar("clip_coef"))


def planned(folder: Path, module: Module, *callbacks: object, **options: Any) -> object:  # noqa: ANN401
    """The last step as the run declares it."""
    told: list[object] = []

    class Looks(pl.Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            told.append(_planned_steps(trainer, pl_module))

    fit(folder, module, Looks(), *callbacks, **options)
    return told[0]


def test_the_last_step_is_known_before_the_first(tmp_path: Path) -> None:
    # 12 batches an epoch, two of them a step.
    assert planned(tmp_path, Module(), max_steps=-1, max_epochs=2) == 12
    assert planned(tmp_path, Module(), max_steps=3, max_epochs=2) == 3
    assert planned(tmp_path, Module(manual=True), max_steps=3) is None
    varying = pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})
    assert planned(tmp_path, Module(), varying, max_steps=-1, max_epochs=2, accumulate_grad_batches=1) is None


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(tmp_path: Path) -> None:
    seen: list[float] = []

    class Losses(Module):
        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            loss = super().training_step(batch, number)
            seen.append(float(loss))
            return loss

    callback, sink = watching()
    fit(tmp_path, Losses(), callback)
    means = [(seen[at] + seen[at + 1]) / 2 for at in range(0, 2 * STEPS, 2)]
    assert sink.scalar("loss") == sink.scalar("raw_loss") == pytest.approx(means)
    assert sink.scalar("train_loss") == pytest.approx(seen[1::2])  # Lightning logs that of the last one


def test_what_is_logged_is_taken_in_the_steps_that_lightning_logs(tmp_path: Path) -> None:
    callback, sink = watching()
    fit(tmp_path, Module(), callback, log_every_n_steps=2)
    assert [value is None for value in sink.scalar("train_loss")] == [True, False, True, False]
    assert None not in sink.scalar("loss")


def test_optimizers_that_step_by_hand_share_a_step(tmp_path: Path) -> None:
    alone, watched = Module(manual=True), Module(manual=True)
    fit(tmp_path, alone, max_steps=2 * STEPS)
    callback, sink = watching()
    trainer = fit(tmp_path, watched, callback, max_steps=2 * STEPS)
    assert same_weights(alone, watched)
    assert trainer.global_step == 2 * STEPS
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert {"lr", "lr/1"} <= sink.records()[0].scalars.keys()


def test_a_training_that_resumes_goes_on_with_its_run_and_step(tmp_path: Path) -> None:
    first, _ = watching(run="mine")
    fit(tmp_path, Module(), first, max_steps=2).save_checkpoint(tmp_path / "half.ckpt")
    second, sink = watching()
    fit(tmp_path, Module(), second, resumes=str(tmp_path / "half.ckpt"))
    assert second._training.run == "mine"
    assert [record.step for record in sink.records()] == [2, 3]


def test_a_training_that_fails_says_so(tmp_path: Path) -> None:
    callback, sink = watching()
    with pytest.raises(RuntimeError, match="the user's own"):
        fit(tmp_path, Module(breaks=5), callback)
    assert sink.reason == "failed"
    assert len(sink.records()) == 2


def test_the_entry_point_gives_nothing_unless_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOATSCOPE_ATTACH", raising=False)
    assert callbacks() == []
    monkeypatch.setenv("FLOATSCOPE_ATTACH", "1")
    assert len(callbacks()) == 1
    monkeypatch.setenv("FLOATSCOPE_DISABLED", "1")
    assert callbacks() == []


def test_attached_twice_is_attached_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATSCOPE_ATTACH", "1")
    [attached] = callbacks()
    callback, sink = watching()
    fit(tmp_path, Module(), attached, callback)
    assert len(sink.records()) == STEPS
    assert attached._training.run is None
