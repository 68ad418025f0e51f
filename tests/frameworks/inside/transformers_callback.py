"""The Trainer's callback, in an environment that has transformers, peft and TRL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainerCallback, TrainingArguments

from floatscope._attach.frameworks import transformers as attached
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._patches import active_patches
from floatscope._record import StepRecord
from floatscope.integrations.transformers import FloatscopeCallback, _facts

STEPS = 4
TINY = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def exceptions_pass() -> Iterator[None]:
    Guard.reraise = True
    torch.set_num_threads(1)
    yield
    Guard.reraise = False
    assert active_patches() == []


def tiny() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = Qwen3ForCausalLM(Qwen3Config(**TINY))
    return model


def rows(count: int = 64) -> list[dict[str, torch.Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, 64, (8,), generator=numbers) for _ in range(count)]
    return [{"input_ids": one, "labels": one} for one in tokens]


def trainer(
    folder: Path, model: nn.Module, *callbacks: object, of: type[Trainer] = Trainer, **options: object
) -> Trainer:
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
    } | options
    arguments = TrainingArguments(**chosen)
    return of(model=model, args=arguments, train_dataset=rows(), eval_dataset=rows(4), callbacks=list(callbacks))


def watching(**options: object) -> tuple[FloatscopeCallback, MemorySink]:
    sink = MemorySink()
    return FloatscopeCallback(_sink=sink, overhead_budget=0, activations_every=1, **options), sink


def events(records: list[StepRecord], kind: str) -> list[tuple[int, object]]:
    return [(r.step, e.detail.get("name")) for r in records for e in r.events if e.kind == kind]


def nonfinite(sink: MemorySink, step: int) -> float:
    """How many gradients of a step are not finite."""
    rows = [row for name in sink.layers() if (row := sink.row(step, "grad", name)) is not None]
    return sum(row["infs"] + row["nans"] for row in rows)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_the_last_step_is_known_where_only_epochs_are_given(tmp_path: Path) -> None:
    told: list[object] = []

    class Looks(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: object, state: object, control: object, **given: object) -> None:
            told.append(_facts(args, state)["max_steps"])

    # 64 rows, two at a time, two of these a step.
    trainer(tmp_path, tiny(), Looks(), max_steps=-1, num_train_epochs=0.25).train()
    assert told == [4]


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_every_step_and_layer_is_there_and_nothing_changes(tmp_path: Path, bf16: bool) -> None:
    alone, watched = tiny(), tiny()
    trainer(tmp_path, alone, bf16=bf16).train()
    callback, sink = watching()
    seen = trainer(tmp_path, watched, callback, bf16=bf16)
    seen.train()
    assert same_weights(alone, watched)
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert sink.reason == "finished"
    logged = [entry for entry in seen.state.log_history if "loss" in entry]
    assert sink.scalar("loss") == [entry["loss"] for entry in logged]
    assert sink.scalar("raw_loss") == pytest.approx([entry["loss"] for entry in logged], rel=1e-3)
    assert sink.scalar("grad_norm") == pytest.approx([entry["grad_norm"] for entry in logged], rel=1e-4)
    assert sink.scalar("logged/grad_norm") == [entry["grad_norm"] for entry in logged]
    layers = sink.layers()
    trained = {name.rpartition(".")[0] for name, _ in watched.named_parameters()}
    assert set(layers) == trained
    executed = {o.kind: o.format for o in layers["model.layers.1.mlp.up_proj"].operands}
    assert executed["act"] == ("bf16" if bf16 else "fp32")
    assert executed["weight"] == executed["grad"] == "fp32"


class Overrides(Trainer):  # type: ignore[misc]
    """A Trainer that does everything by itself; in step 1 its loss is no number, with finite gradients."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: object = None) -> Any:  # noqa: ANN401
        model.train()
        loss = model(input_ids=inputs["input_ids"]).logits.square().mean()
        if self.state.global_step == 1:
            loss = loss + float("nan")
        self.accelerator.backward(loss / 2)
        return loss.detach() / 2


def test_the_raw_loss_shows_what_the_log_leaves_out(tmp_path: Path) -> None:
    callback, sink = watching()
    trainer(tmp_path, tiny(), callback, of=Overrides).train()
    raw, logged = sink.scalar("raw_loss"), sink.scalar("loss")
    assert [value != value for value in raw] == [False, True, False, False]
    assert all(value == value for value in logged)


def test_what_is_evaluated_and_saved_belongs_to_its_step(tmp_path: Path) -> None:
    callback, sink = watching()
    often: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 4}
    trainer(tmp_path, tiny(), callback, **often).train()
    records = [record for record in sink.records() if record.scalars]
    assert [record.step for record in records if "eval_loss" in record.scalars] == [1, 3]
    assert events(sink.records(), "checkpoint") == [(3, "checkpoint-4")]
    assert len(records) == STEPS


class Scaled(Trainer):  # type: ignore[misc]
    """A Trainer whose Accelerator scales the loss, as it does for fp16 on a card; step 1 overflows."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: object = None) -> Any:  # noqa: ANN401
        model.train()
        loss = model(input_ids=inputs["input_ids"]).logits.square().mean()
        loss = loss * (3e38 if self.state.global_step == 1 else 1.0) / 2
        self.accelerator.backward(loss)
        return loss.detach()


def test_skipped_steps_are_those_that_the_scaler_skips(tmp_path: Path) -> None:
    alone, watched = tiny(), tiny()
    trainer(tmp_path, alone, of=Scaled, max_grad_norm=0.0).train()
    callback, sink = watching()
    trainer(tmp_path, watched, callback, of=Scaled, max_grad_norm=0.0).train()
    assert same_weights(alone, watched)
    assert sink.scalar("skipped") == [0.0, 1.0, 0.0, 0.0]
    assert sink.scalar("loss_scale") == [4.0, 4.0, 2.0, 2.0]
    assert nonfinite(sink, 1) > 0
    assert nonfinite(sink, 2) == 0


def test_logging_seldom_leaves_the_raw_loss_of_each_step(tmp_path: Path) -> None:
    callback, sink = watching()
    trainer(tmp_path, tiny(), callback, logging_steps=2).train()
    assert [value is None for value in sink.scalar("loss")] == [True, False, True, False]
    raw = sink.scalar("raw_loss")
    pairs = [(raw[at] + raw[at + 1]) / 2 for at in (0, 2)]  # type: ignore[operator]
    assert pairs == pytest.approx([value for value in sink.scalar("loss") if value is not None], abs=1e-4)


def test_a_training_that_resumes_goes_on_with_its_run_and_step(tmp_path: Path) -> None:
    first, _ = watching(run="mine")
    trainer(tmp_path, tiny(), first, save_strategy="steps", save_steps=2, max_steps=2).train()
    second, sink = watching()
    again = trainer(tmp_path, tiny(), second, save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert second._training.run == "mine"
    assert [record.step for record in sink.records()] == [2, 3]


def test_a_name_that_is_given_goes_over_that_of_the_checkpoint(tmp_path: Path) -> None:
    first, _ = watching(run="mine")
    trainer(tmp_path, tiny(), first, save_strategy="steps", save_steps=2, max_steps=2).train()
    second, _ = watching(run="other")
    trainer(tmp_path, tiny(), second).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert second._training.run == "other"


class Stops(TrainerCallback):  # type: ignore[misc]
    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ANN401
        if state.global_step == 2:
            raise RuntimeError("the user's own")


def test_after_a_training_that_failed_the_next_one_is_watched(tmp_path: Path) -> None:
    model = tiny()
    first, sink = watching()
    with pytest.raises(RuntimeError, match="the user's own"):
        trainer(tmp_path, model, first, Stops()).train()
    second, other = watching()
    trainer(tmp_path, model, second).train()
    assert sink.reason == "failed"
    assert [len(one.records()) for one in (sink, other)] == [2, STEPS]


def test_attached_twice_is_attached_once(tmp_path: Path) -> None:
    before = list(transformers.trainer.DEFAULT_CALLBACKS)
    attached.on_import(transformers.trainer)
    try:
        callback, sink = watching()
        seen = trainer(tmp_path, tiny(), callback)
    finally:
        transformers.trainer.DEFAULT_CALLBACKS[:] = before
    seen.train()
    assert len(sink.records()) == STEPS
    [other] = [one for one in seen.callback_handler.callbacks if isinstance(one, attached._Attached)]
    assert other._training.run is None


def test_adapters_are_seen_and_what_is_frozen_is_named(tmp_path: Path) -> None:
    model = get_peft_model(tiny(), LoraConfig(r=2, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM"))
    callback, sink = watching()
    seen = trainer(tmp_path, model, callback)
    seen.train()
    trained = {name.rpartition(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    read = {name for name in sink.layers() if sink.row(2, "grad", name) is not None}
    assert read == trained
    assert len(trained) == 8


def test_trl_is_watched_like_any_trainer(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_list([{name: t.tolist() for name, t in row.items()} for row in rows()])
    callback, sink = watching()
    options = SFTConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        report_to=[],
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
    )
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(n): n for n in range(64)}, unk_token="0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="1", eos_token="2", unk_token="0")
    SFTTrainer(tiny(), args=options, train_dataset=data, processing_class=tokenizer, callbacks=[callback]).train()
    assert [record.step for record in sink.records()] == list(range(STEPS))
    assert all(value is not None for value in sink.scalar("raw_loss"))


@pytest.mark.parametrize("options", [{"gradient_every": 1}, {"activations_every": -1}, {"run": "a/b"}], ids=str)
def test_what_makes_no_sense_is_refused_where_it_is_written(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
        FloatscopeCallback(**options)
