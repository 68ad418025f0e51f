"""DeepSpeed, Apex and Megatron: skipped steps, norms, absent fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from floatscope_server.readers.skips import Clock, Seen, spread

if TYPE_CHECKING:
    from tests.server.readers.conftest import Read, Reads


def _skips(read: Read) -> list[int]:
    return [row.step for row in [*read.rows, *read.made] if row.meaning.get("skipped") == 1.0]


@pytest.mark.parametrize(
    ("line", "scale"),
    [
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", 32768.0),
        ("[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536.0, reducing to 65536.0", 65536.0),
        (
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing",
            65536.0,
        ),
        ("[fused_optimizer.py] Reducing dynamic loss scale from 4294967296 to 2147483648.0", 2147483648.0),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0", 16384.0),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 0.5", 0.5),
    ],
)
def test_overflows_of_all_versions(reads: Reads, line: str, scale: float) -> None:
    read = reads(f" 14%|#  | 375/2724 [13:51:33<86:40:00, 132.60s/it][2023-06-07 22:09:24,000] [INFO] {line}\n")
    assert read.format == "deepspeed-console"
    assert read.points("loss_scale") == [(375, scale)]
    assert _skips(read) == [375]


def test_steps_between_overflows_were_not_skipped(reads: Reads) -> None:
    bar = "  1%|   | {}/900 [00:10<1:00:00,  1.00s/it]"
    overflow = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
    text = (
        bar.format(100) + overflow.format(64, 32) + bar.format(101) + "\n" + bar.format(150) + overflow.format(32, 16)
    )
    read = reads(text)
    assert _skips(read) == [100, 150]
    assert [row.step for row in read.made if row.meaning.get("skipped") == 0.0] == [149]


def test_engine_lines_and_time_stamps_place_overflows(reads: Reads) -> None:
    line = "[2023-04-28 06:{:02d}:{:02d},000] [INFO] [Rank 0] step={}, skipped={}, lr=[1e-05], mom=[(0.9, 0.95)]\n"
    overflow = (
        "[2023-04-28 06:{:02d}:{:02d},000] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 "
        "Skipping step. Attempted loss scale: {}, reducing to {}\n"
    )
    text = line.format(0, 0, 100, 0) + line.format(0, 20, 110, 0)
    text += overflow.format(0, 24, 64, 32) + overflow.format(0, 30, 32, 16) + line.format(0, 40, 120, 2)
    read = reads(text)
    assert _skips(read) == [112, 115]
    assert read.points("skipped_steps") == [(100, 0.0), (110, 0.0), (120, 2.0)]


def test_the_same_overflow_from_two_hosts_is_one(reads: Reads) -> None:
    overflow = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32\n"
    bar = "  1%|   | 100/900 [00:10<1:00:00,  1.00s/it]"
    assert _skips(reads(f"{bar}host-0: {overflow}host-1: {overflow}")) == [100]


def test_scaler_at_its_minimum(reads: Reads) -> None:
    read = reads(
        "  1%|   | 100/900 [00:10<1:00:00,  1.00s/it]\n"
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
    )
    (found,) = read.happenings
    assert (found.line, found.event.kind, found.event.step) == (2, "skipped", 100)
    assert found.event.detail == {"at_minimum": True}


def test_spread_and_clock() -> None:
    assert spread(100, 110, 2) == [105, 110]
    assert spread(100, 101, 5) == [101]
    assert spread(100, 110, 0) == []
    clock = Clock()
    assert clock.place([Seen(1, 1.0, None)] * 3, 0, 10) == [1, 2, 3]
    assert clock.place([Seen(1, 1.0, None)] * 3, 9, 10) == [8, 9, 10]


def _iteration(step: int, **fields: str) -> str:
    named = {"consumed_samples": "100", "lm_loss": "2.5E+00", "loss_scale": "65536.0", "grad_norm": "1.5"} | fields
    text = " | ".join(f"{name.replace('_', ' ')}: {value}" for name, value in named.items() if value)
    return f" iteration {step:8d}/  100000 | {text} | number of nan iterations:   0 |\n"


def test_norm_times_the_scale_is_unscaled(reads: Reads) -> None:
    read = reads(_iteration(100, grad_norm="98304.0") + _iteration(101, grad_norm="32768.0"))
    assert [row.meaning["grad norm"] for row in read.rows] == [1.5, 0.5]
    assert read.points("grad norm") == [(100, 98304.0), (101, 32768.0)]


@pytest.mark.parametrize(
    ("norm", "scale"), [("1.5", "65536.0"), ("900.0", "4294967296.0"), ("5000.0", "1.0"), ("3.2", "")]
)
def test_norm_that_is_unscaled_already(reads: Reads, norm: str, scale: str) -> None:
    (row,) = reads(_iteration(100, grad_norm=norm, loss_scale=scale)).rows
    assert row.meaning["grad norm"] == float(norm)


def test_norm_that_nobody_computes(reads: Reads) -> None:
    rows = reads(_iteration(1, grad_norm="0.000") + _iteration(2, grad_norm="0.000")).rows
    assert [row.meaning.get("grad norm") for row in rows] == [None, None]


def test_skipped_iterations_counted_over_an_interval(reads: Reads) -> None:
    text = _iteration(100) + _iteration(200, number_of_skipped_iterations="3") + _iteration(300)
    read = reads(text)
    assert _skips(read) == [200, 133, 167]
    assert [row.step for row in read.rows] == [100, 200, 300]


def test_a_fallen_scale_is_a_skip_and_an_absent_loss_is_none(reads: Reads) -> None:
    read = reads(_iteration(100) + _iteration(101, lm_loss="", loss_scale="32768.0"))
    assert _skips(read) == [101]
    assert "lm loss" not in read.rows[1].meaning
    assert "grad norm" not in read.rows[1].meaning


def test_pairs_of_primus_prefixes_and_memory(reads: Reads) -> None:
    text = (
        "[20251121 12:10:29][rank-31/32][INFO ] [------trainer.py:2488] :  iteration    12125/   36000 | "
        "elapsed time per iteration (ms): 2701.3/2712.7 | rocm mem usage/free/total/usage_ratio: "
        "227.35GB/28.63GB/255.98GB/88.81% | throughput per GPU (TFLOP/s/GPU): 210.5/217.3 | learning rate: 1.5E-04 | "
        "lm loss: 2.352391E+00 | loss scale: 1.0 | grad norm: 0.132 |\n"
    )
    read = reads(text)
    (row,) = read.rows
    assert row.values["elapsed time per iteration (ms)"] == 2701.3
    assert row.values["elapsed time per iteration (ms) avg"] == 2712.7
    assert row.values["rocm mem usage_ratio"] == 88.81
    assert row.values["rank"] == 31
    assert row.meaning["step_time_s"] == pytest.approx(2.7013)
    (reading,) = read.readings
    assert reading.device.vram_total_bytes == round(255.98 * 2**30)
    assert reading.device.index == 31


@pytest.mark.parametrize("prefix", ["[default7]:", "[2026-05-28 22:26:20]", "\x1b[32mnode-3:\x1b[0m", "0: "])
def test_prefixes_of_megatron(reads: Reads, prefix: str) -> None:
    read = reads(prefix + _iteration(7, elapsed_time_per_iteration_="") + "time (ms)\n" + prefix + _iteration(8))
    assert read.format == "megatron-console"
    assert [row.step for row in read.rows] == [7, 8]


def test_validation_is_a_row_of_its_step_but_no_record(reads: Reads) -> None:
    read = reads(
        _iteration(100)
        + " validation loss at iteration 100 on validation set | lm loss value: 7.1E+00 | lm loss PPL: 1.3E+03 |\n"
    )
    assert len(read.rows) == 1
    assert read.points("validation lm loss") == [(100, 7.1)]
    assert read.made[0].meaning == {"eval_loss": 7.1}


def test_iterations_that_go_back_are_a_restart(reads: Reads) -> None:
    rows = reads(_iteration(100) + _iteration(101) + _iteration(50) + _iteration(51)).rows
    assert [row.restart for row in rows] == [False, False, True, False]


def test_overflows_without_a_scale_and_in_lower_case(reads: Reads) -> None:
    bar = "  1%|   | {}/900 [00:10<1:00:00,  1.00s/it]"
    read = reads(
        f"{bar.format(100)}[deepspeed] OVERFLOW! Rank 0 Skipping step.\n"
        f"{bar.format(102)}[unfused_optimizer.py:207] [deepspeed] fp16 dynamic loss scale overflow! Skipping step. "
        "Attempted loss scale: 65536.0, reducing to 32768.0\n"
    )
    assert _skips(read) == [100, 102]
    assert read.points("loss_scale") == [(102, 32768.0)]


def test_the_same_words_at_another_step_are_another_overflow(reads: Reads) -> None:
    bar = "  1%|   | {}/189 [00:00<01:26,  2.17it/s]\n"
    overflow = " [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 262144, reducing to 262144\n"
    assert _skips(reads("".join(bar.format(step) + overflow for step in (0, 1, 2, 3)))) == [0, 1, 2, 3]


def test_engine_lines_between_iterations_are_no_records(reads: Reads) -> None:
    engine = "[2024-03-07 15:27:15,063] [INFO] [logging.py:96:log_dist] [Rank 0] step=200, skipped=4, lr=[0.0002]\n"
    read = reads(_iteration(199) + engine + _iteration(200))
    assert [row.step for row in read.rows] == [199, 200]
    assert read.points("skipped_steps") == [(200, 4.0)]


def test_names_of_other_versions(reads: Reads) -> None:
    read = reads(
        "[2024-02-27 15:45:08] iteration 13 / 118 | elapsed time per iteration(ms): 17658.3 | lm loss: 6.2E-01 | "
        "loss scale: 1.0 |total grad norm: 2.773 | number of nan iterations: 0 |\n"
    )
    (row,) = read.rows
    assert row.meaning == {
        "step_time_s": pytest.approx(17.6583),
        "lm loss": 0.62,
        "grad norm": 2.773,
        "loss_scale": 1,
        "skipped": 0,
    }
