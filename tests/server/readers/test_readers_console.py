"""Captured output of the Trainer: steps from bars, values in all their forms, records printed twice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from floatscope_server.readers import Row

if TYPE_CHECKING:
    from tests.server.readers.conftest import Reads


def _bar(done: int, total: int = 900, rate: str = "2.00s/it") -> str:
    return f"{100 * done // total:3d}%|███   | {done}/{total} [00:10<1:00:00,  {rate}]"


def test_values_in_quotes_of_numpy_and_tensors(reads: Reads) -> None:
    read = reads(
        "{'loss': '0.4589', 'grad_norm': '1.05', 'learning_rate': '5.2e-06', 'epoch': '1.22'}\n"
        "{'loss': np.float64(0.5), 'grad_norm': tensor(2.25, device='cuda:0'), 'learning_rate': 5e-06, 'epoch': 1.3}\n"
        "{'loss': -0.0, 'grad_norm': nan, 'learning_rate': inf, 'note': None, 'list': [1, 2]}\n"
    )
    assert read.format == "hf-console"
    assert [row.meaning["loss"] for row in read.rows] == [0.4589, 0.5, -0.0]
    assert read.rows[1].values["grad_norm"] == 2.25
    assert math.isnan(read.rows[2].values["grad_norm"])
    assert read.rows[2].values["learning_rate"] == math.inf
    assert [row.step for row in read.rows] == [1, 2, 3]


@pytest.mark.parametrize("style", ["before", "after", "glued before", "glued after"])
def test_step_from_the_bar(reads: Reads, style: str) -> None:
    text = ""
    for step in (10, 20, 30):
        record = f"{{'loss': {5 - step / 10}, 'learning_rate': 1e-05, 'epoch': 0.1}}"
        text += {
            "before": f"{_bar(step)}\n{record}\n",
            "after": f"{record}\n{_bar(step)}\r{_bar(step + 1)}\n",
            "glued before": f"{_bar(step)}{record}\n",
            "glued after": f"{record}{_bar(step)}\n",
        }[style]
    read = reads(text)
    assert read.points("loss") == [(10, 4.0), (20, 3.0), (30, 2.0)]
    assert not any(row.restart for row in read.rows)


def test_a_bar_that_lags_behind_its_record(reads: Reads) -> None:
    text = f"{_bar(0)}\n"
    for step in range(5, 31, 5):
        text += f"{_bar(step - 1)}\n{{'loss': 1.5, 'learning_rate': {step}e-06, 'epoch': 0.1}}\n{_bar(step)}\n"
    assert [row.step for row in reads(text).rows][2:] == [15, 20, 25, 30]


def test_bars_of_loading_and_evaluation_are_not_the_training_s(reads: Reads) -> None:
    text = (
        "Loading checkpoint shards: 100%|####| 4/4 [00:03<00:00,  1.2it/s]\n"
        "Map (num_proc=8): 100%|####| 1000/1000 [00:03<00:00, 300it/s]\n"
        f"{_bar(0)}\n{_bar(10)}\n{{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
        f"  3%|#   | 1/29 [00:00<00:10,  2.5it/s]\r100%|####| 29/29 [00:11<00:00,  2.5it/s]\n"
        "{'eval_loss': 1.9, 'eval_runtime': 11.0, 'epoch': 0.1}\n"
        f"{_bar(10)}\n{_bar(20)}\n{{'loss': 1.8, 'learning_rate': 1e-05, 'epoch': 0.2}}\n"
    )
    read = reads(text)
    assert read.points("loss") == [(10, 2.0), (20, 1.8)]
    assert read.points("eval_loss") == [(10, 1.9)]
    assert read.rows[1].meaning["eval_loss"] == 1.9


def test_a_training_s_bar_may_say_so(reads: Reads) -> None:
    read = reads(f"Training: {_bar(10).strip()}{{'loss': 2.0, 'learning_rate': 1e-05}}\n")
    assert read.points("loss") == [(10, 2.0)]


def test_logging_steps_where_there_is_no_bar(reads: Reads) -> None:
    text = "TrainingArguments(\nlogging_steps=25,\n)\n" + "{'loss': 2.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 1
    text += "{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.2}\n"
    assert reads(text).points("loss") == [(25, 2.0), (50, 1.0)]


def test_each_record_printed_twice(reads: Reads) -> None:
    text = ""
    for i in range(1, 4):
        text += (
            f"[INFO|2024-05-01 10:00:0{i}] llamafactory.train.callbacks:143 >> {{'loss': {3 - i / 10:.4f}, "
            f"'learning_rate': 1.2346e-05, 'epoch': 0.1{i}, 'throughput': 1234.5}}\n"
            f"{{'loss': {3 - i / 10:.4f}, 'grad_norm': 1.5, 'learning_rate': 1.2345678e-05, 'epoch': 0.1{i}}}\n"
        )
    read = reads(text)
    assert [row.step for row in read.rows] == [1, 2, 3]
    assert read.rows[0].values["learning_rate"] == 1.2345678e-05
    assert read.rows[0].values["throughput"] == 1234.5


def test_the_same_record_from_several_hosts(reads: Reads) -> None:
    text = ""
    for i in range(3):
        for host in ("node-0", "node-1"):
            text += f"{host}: {{'loss': {2 - i / 10}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.{i}}}\n"
    assert reads(text).points("loss") == [(1, 2.0), (2, 1.9), (3, 1.8)]


def test_identical_records_of_one_host_are_several(reads: Reads) -> None:
    record = "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
    assert len(reads(record * 4).rows) == 4


def test_a_training_started_anew(reads: Reads) -> None:
    text = "".join(f"{_bar(s)}\n{{'loss': 1.5, 'learning_rate': {s}e-06, 'epoch': 0.1}}\n" for s in (10, 20, 5, 15))
    rows = [item for item in reads(text).items if isinstance(item, Row)]
    assert [row.step for row in rows if row.restart] == [5]


def test_summary_of_the_whole_is_no_loss_of_a_step(reads: Reads) -> None:
    read = reads(
        "{'loss': 0.1, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        "{'train_runtime': 100.0, 'train_loss': 2.5, 'train_steps_per_second': 1.0, 'epoch': 3.0}\n"
    )
    assert "loss" not in read.rows[-1].meaning
    assert read.rows[-1].values["train_loss"] == 2.5


def test_other_dictionaries_and_truncation(reads: Reads) -> None:
    read = reads("{'a': 1, 'b': 'c'}\n{'loss': 2.0, 'learning_rate': 1e-05}\n{'loss': 1.0, 'learning_ra")
    assert [row.meaning["loss"] for row in read.rows] == [2.0]
    assert [broken.line for broken in read.broken] == [3]


@pytest.mark.parametrize(
    ("line", "what", "rank"),
    [
        ("HW Exception by GPU node-9 (Agent handle: 0x1) reason :GPU Hang", "gpu", None),
        (
            "[rank5]:[E602 11:17:52.185 ProcessGroupNCCL.cpp:6] [Rank 5] Watchdog caught collective operation timeout",
            "collective",
            5,
        ),
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x5638) on address (nil). Reason: Unknown.",
            "aborted",
            None,
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "aborted", None),
    ],
)
def test_hangs(reads: Reads, line: str, what: str, rank: int | None) -> None:
    read = reads(f"{_bar(24)}{line}\n")
    (found,) = read.happenings
    assert (found.event.kind, found.event.step) == ("hang", 24)
    assert (found.event.detail["what"], found.event.detail["rank"]) == (what, rank)


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_TIMEOUT=1800 ddp_timeout=180000000 watchdog enabled",
        "Using GPU 0: AMD Instinct MI300X",
        "torch.cuda: GPU memory 10 GiB; heartbeat ok",
        "[INFO] DataLoader timeout set to 0",
    ],
)
def test_words_that_are_no_hang(reads: Reads, line: str) -> None:
    assert reads(f"{_bar(24)}\n{line}\n").happenings == []
