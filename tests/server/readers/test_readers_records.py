"""trainer_log.jsonl, trainer_state.json, TensorBoard events, Transformer Engine's statistics, extremes of layers."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import pytest

from floatscope_server.readers.crc32c import masked_crc32c

if TYPE_CHECKING:
    from tests.server.readers.conftest import Reads


def _line(step: int, elapsed: str = "0:01:00", **fields: object) -> str:
    return json.dumps({"current_steps": step, "total_steps": 900, **fields, "elapsed_time": elapsed}) + "\n"


def test_trainer_log_values(reads: Reads) -> None:
    text = _line(10, "1 day, 0:08:23", loss=2.5, lr=1e-5, eval_loss=None, reward=None, throughput="0.00", flag=True)
    text += '{"current_steps": 20, "loss": NaN, "lr": 1e-05, "elapsed_time": "1 day, 1:00:00"}\n'
    read = reads("\ufeff" + text.replace("\n", "\r\n"))
    first, second = read.rows
    assert first.values == {"total_steps": 900, "loss": 2.5, "lr": 1e-5, "throughput": 0.0, "elapsed_time": 86903.0}
    assert first.meaning == {"loss": 2.5, "lr": 1e-5}
    assert math.isnan(second.meaning["loss"])
    assert second.meaning["step_time_s"] == pytest.approx((90000 - 86903) / 10)


def test_trainer_log_that_is_damaged(reads: Reads) -> None:
    text = (
        _line(10, loss=1.0)
        + "\0\0\xff garbage\n"
        + '{"current_steps": 20, "lo\n'
        + _line(30, loss=1.0)
        + _line(40)[:30]
    )
    read = reads(text)
    assert [row.step for row in read.rows] == [10, 30]
    assert [broken.line for broken in read.broken] == [3, 5]


def test_trainer_log_taken_up_again(reads: Reads) -> None:
    """Two writers out of phase are no restart, a process that has just begun is one."""
    text = _line(100, "1:00:00") + _line(110, "1:06:00") + _line(100, "1:00:01") + _line(120, "1:12:00")
    text += _line(90, "0:01:00") + _line(100, "0:07:00")
    assert [row.restart for row in reads(text).rows] == [False, False, False, False, True, False]


def _state(*entries: dict[str, Any], indent: int | None = 2) -> str:
    return json.dumps(
        {"best_metric": None, "best_model_checkpoint": "x", "log_history": list(entries), "logging_steps": 10},
        indent=indent,
    )


@pytest.mark.parametrize("indent", [None, 2])
def test_trainer_state_values(reads: Reads, indent: int | None) -> None:
    text = _state(
        {"epoch": 0.1, "loss": math.nan, "grad_norm": math.inf, "step": 10},
        {"epoch": 0.1, "eval_loss": 1.25, "step": 10},
        {"epoch": 1.0, "train_loss": 1.5, "train_runtime": 10.0, "step": 20},
        indent=indent,
    )
    read = reads(text)
    assert read.format == "hf-trainer-state"
    assert [row.step for row in read.rows] == [10, 10, 20]
    assert math.isnan(read.rows[0].meaning["loss"])
    assert read.rows[1].meaning == {"eval_loss": 1.25}
    assert read.rows[2].meaning == {}
    if indent:
        assert [row.line for row in read.rows] == [5, 11, 16]


def test_trainer_state_that_ends_in_the_middle(reads: Reads) -> None:
    text = _state(*({"loss": 1.0, "step": step} for step in range(10)))
    cut = text.index('"step": 7')
    read = reads(text[:cut])
    assert [row.step for row in read.rows] == list(range(7))
    assert [broken.line for broken in read.broken] == [text[: text.rindex("{", 0, cut)].count("\n") + 1]
    damaged = reads(text.replace('"step": 7', '"step": \0'))
    assert len(damaged.rows) == 7
    assert len(damaged.broken) == 1


def test_trainer_state_after_another(reads: Reads) -> None:
    one = _state(*({"loss": 1.0, "step": step} for step in (10, 20)))
    assert [(row.step, row.restart) for row in reads(one + one).rows] == [
        (10, False),
        (20, False),
        (10, True),
        (20, False),
    ]


def _varint(value: int) -> bytes:
    out = b""
    value &= (1 << 64) - 1
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), content, struct.pack("<I", masked_crc32c(content))]
    )


def _event(step: int, value: bytes) -> bytes:
    return _record(b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + _varint(step) + _message(5, _message(1, value)))


def _simple(step: int, tag: str, value: float) -> bytes:
    return _event(step, _message(1, tag.encode()) + b"\x15" + struct.pack("<f", value))


def _tensor(step: int, tag: str, tensor: bytes) -> bytes:
    return _event(step, _message(1, tag.encode()) + _message(8, tensor))


HEADER = _record(b"\x09" + struct.pack("<d", 1.7e9) + _message(3, b"brain.Event:2"))


def test_tensorboard_values(reads: Reads) -> None:
    data = HEADER + _simple(1, "train/loss", 2.5) + _simple(1, "train/grad_norm", math.nan)
    data += _tensor(2, "train/loss", b"\x08\x01" + _message(5, struct.pack("<f", 2.25)))
    data += _tensor(3, "train/loss", b"\x08\x02" + _message(4, struct.pack("<d", 1e300)))
    data += _tensor(3, "args", b"\x08\x07" + _message(8, b"--path /somewhere"))
    read = reads(data)
    assert read.format == "tensorboard-events"
    assert read.points("train/loss") == [(1, 2.5), (2, 2.25), (3, 1e300)]
    assert math.isnan(read.rows[0].meaning["grad_norm"])
    assert sum(row.records for row in read.rows) == 4


def test_tensorboard_one_tag_after_the_other(reads: Reads) -> None:
    data = (
        HEADER + b"".join(_simple(s, "loss", s) for s in (1, 2, 3)) + b"".join(_simple(s, "lr", s) for s in (1, 2, 3))
    )
    rows = reads(data).rows
    assert [(row.step, row.meaning, row.restart) for row in rows] == [
        (s, {"loss": s, "lr": s}, False) for s in (1, 2, 3)
    ]


def test_tensorboard_started_anew(reads: Reads) -> None:
    data = HEADER + b"".join(_simple(s, "loss", s) for s in (1, 2, 3, 2, 3, 4))
    assert [(row.step, row.restart) for row in reads(data).rows] == [
        (1, False),
        (2, False),
        (3, False),
        (2, True),
        (3, False),
        (4, False),
    ]


def test_tensorboard_that_is_damaged(reads: Reads) -> None:
    good = HEADER + _simple(1, "loss", 2.5) + _simple(2, "loss", 2.0)
    assert len(reads(good[:-3]).rows) == 1
    assert [broken.line for broken in reads(good[:-3]).broken] == [3]
    flipped = bytearray(good)
    flipped[len(HEADER) + 20] ^= 0xFF
    read = reads(bytes(flipped))
    assert [row.step for row in read.rows] == [2]
    assert [broken.line for broken in read.broken] == [2]
    assert len(reads(good + b"\0" * 40).rows) == 2


def test_transformer_engine_statistics(reads: Reads) -> None:
    name = "model.decoder.layers.1.self_attention.linear_qkv"
    text = (
        f"INFO - {name}_activation_min    iteration=000002    value=-4.5\n"
        f"INFO - {name}_activation_max    iteration=000002    value=3.0\n"
        f"INFO - {name}_activation_fp8_underflows%  iteration=000002  value=12.5\n"
        f"INFO - {name}_gradient_cur_amax    iteration=000002    value=nan\n"
        f"INFO - {name}_activation_max    iteration=000003    value=3.5\n"
    )
    read = reads(text)
    assert read.format == "transformer-engine-log"
    first, second, third = read.extremes
    assert (first.layer, first.kind, first.format, first.absmax, first.under) == (name, "act_in", "e4m3fn", 4.5, 0.125)
    assert (second.kind, second.format, math.isnan(second.absmax)) == ("act_grad", "e5m2", True)
    assert (third.step, third.absmax) == (3, 3.5)
    assert read.points(f"{name}_activation_min") == [(2, -4.5)]


def test_layer_extremes(reads: Reads) -> None:
    read = reads(
        "layer, dtype, step, tensor, amax\nl.0, torch.float16, 3, act, inf\nl.1, float8_e4m3fn, 3, weight, 5e2\n"
        "l.2,bf16,3\nl.3, half, x, act, 1\nl.4, fp8_e5m2fnuz, 4, wgrad_operand, nan\n"
    )
    assert read.format == "layer-extremes-csv"
    assert [(e.step, e.layer, e.kind, e.format) for e in read.extremes] == [
        (3, "l.0", "act", "fp16"),
        (3, "l.1", "weight", "e4m3fn"),
        (4, "l.4", "act_grad", "e5m2fnuz"),
    ]
    assert [broken.line for broken in read.broken] == [4, 5]
