"""Trainings that know nothing of us: ``python programs.py NAME FILE [STEP...]``; the weights go to FILE.

Two micro-batches a step, in bf16; with steps given in fp16 with a loss scaler, and these overflow in ``down``. On the
CPU frameworks make no scaler, so it is put in; with FLOATSCOPE_TEST_DEVICE=cuda they make their own, on a card. Under
torchrun with as many ranks as there are; Lightning launches FLOATSCOPE_TEST_RANKS by itself.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4
OVERFLOWS = frozenset(map(int, sys.argv[3:]))
PRECISION = "fp16" if OVERFLOWS else "bf16"
RANKS = int(os.environ.get("FLOATSCOPE_TEST_RANKS") or os.environ.get("WORLD_SIZE", "1"))
ON_CPU = os.environ.get("FLOATSCOPE_TEST_DEVICE", "cpu") == "cpu"
# A scaler of a card begins so high that losses of 1 overflow.
LOSSES = 1.0 if ON_CPU else 2.0**-6


def rows() -> TensorDataset:
    inputs = torch.randn(4 * STEPS * RANKS, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 1)
        micro = itertools.count()
        if OVERFLOWS:

            def overflow(grad: torch.Tensor) -> torch.Tensor:
                return grad * math.inf if next(micro) // 2 in OVERFLOWS else grad

            self.down.weight.register_hook(overflow)  # type: ignore[no-untyped-call]

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.down(self.up(inputs).relu())
        return {"loss": (outputs - labels).square().mean() * LOSSES, "logits": outputs}


def scale(accelerator: Any) -> None:  # noqa: ANN401
    """Have ``accelerator`` do what it does on a card."""
    if OVERFLOWS and ON_CPU:
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def transformers() -> nn.Module:
    """The evaluation before the first step is no training."""
    from transformers import Trainer, TrainingArguments

    model = Model()
    inputs, labels = rows().tensors
    data = [{"inputs": one, "labels": other} for one, other in zip(inputs, labels, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=STEPS,
            logging_steps=1,
            bf16=not OVERFLOWS,
            fp16=bool(OVERFLOWS),
            use_cpu=ON_CPU,
            report_to=[],
            save_strategy="no",
            eval_on_start=True,
            remove_unused_columns=False,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4])
        scale(trainer.accelerator)
        trainer.train()
    return model


def subclass() -> nn.Module:
    """A Trainer that has nothing of the Trainer's but its name."""
    from transformers import Trainer, TrainingArguments

    class Own(Trainer):  # type: ignore[misc]
        def train(self, *given: Any, **named: Any) -> None:  # noqa: ANN401
            optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
            for step in range(STEPS):
                optimizer.zero_grad()
                for micro in range(2):
                    inputs, labels = self.train_dataset[4 * step + 2 * micro : 4 * step + 2 * micro + 2]
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        loss = self.model(inputs, labels)["loss"]
                    loss.backward()
                optimizer.step()

        def training_step(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401
            raise AssertionError("its own loop has none")

        compute_loss = _inner_training_loop = log = create_optimizer = training_step

    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[])
        Own(model=model, args=arguments, train_dataset=rows()).train()
    return model


def lightning() -> nn.Module:
    """The check of the validation before the first step is no training."""
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: list[torch.Tensor], number: int) -> Any:  # noqa: ANN401
            loss = self.model(*batch)["loss"]
            self.log("mine", loss)
            return loss

        def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
            self.log("checked", self.model(*batch)["loss"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Module()
    scaler = None
    if OVERFLOWS:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if ON_CPU else torch.amp.GradScaler()
    device = "cpu" if ON_CPU else "cuda"
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_steps=STEPS,
            accumulate_grad_batches=2,
            accelerator="cpu" if ON_CPU else "gpu",
            devices=RANKS,
            plugins=MixedPrecision("16-mixed" if OVERFLOWS else "bf16-mixed", device, scaler),
            default_root_dir=folder,
            log_every_n_steps=1,
            logger=False,
            enable_checkpointing=False,
        )
        trainer.fit(module, DataLoader(rows(), batch_size=2), DataLoader(rows(), batch_size=2))
    return module


def accelerate() -> nn.Module:
    """A loop of one's own."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=ON_CPU, gradient_accumulation_steps=2, mixed_precision=PRECISION)
    scale(accelerator)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prepared, optimizer, data = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=2))
    accelerator.init_trackers("project", config={"api_key": "sk-abcdefghijklmnopqrstuvwx", "note": "mine"})
    for inputs, labels in data:
        with accelerator.accumulate(prepared):
            loss = prepared(inputs, labels)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({"mine": float(loss.detach())})
    accelerator.end_training()
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs = {"accelerate": accelerate, "lightning": lightning, "subclass": subclass, "transformers": transformers}
    trained: nn.Module = programs[sys.argv[1]]()
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        torch.save(trained.state_dict(), sys.argv[2])
