"""Logs of other trainers and tools, as they print them: sound courses are silent above info, sick ones are told of at
their step."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.check.conftest import Checks

STEPS = 300
SICK = 200
NEVER = STEPS + 1


class _Course:
    """The numbers of a training that breaks at a step."""

    def __init__(self, broken: int) -> None:
        self._chance = random.Random(7)
        self._broken = broken

    def loss(self, step: int) -> float:
        if step >= self._broken:
            return math.nan
        return 1.2 + 1.3 * math.exp(-4 * step / STEPS) + self._chance.gauss(0, 0.03)

    def norm(self, step: int) -> float:
        return math.nan if step >= self._broken else self._chance.lognormvariate(0, 0.2)

    def near(self, value: float) -> float:
        return value + self._chance.gauss(0, 0.01 * value)


def _torchtune(c: _Course) -> str:
    return "".join(
        f"Step {i} | loss:{c.loss(i)} lr:2e-05 tokens_per_second_per_gpu:{c.near(2000)} grad_norm:{c.norm(i)}\n"
        for i in range(1, NEVER)
    )


def _torchtitan(c: _Course) -> str:
    return "".join(
        f"[titan] 2025-01-01 00:00:00,123 - root - INFO - \x1b[31mstep: {i:2d}  \x1b[32mloss: {c.loss(i):7.4f}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {c.norm(i):7.4f}  \x1b[33mmemory: 30.10GiB(31.70%)  \x1b[34mtps: 5,011\x1b[0m\n"
        for i in range(1, NEVER)
    )


def _nanogpt(c: _Course) -> str:
    text = "number of parameters: 123.59M\n"
    for i in range(NEVER):
        if i % 100 == 0:
            text += f"step {i}: train loss {c.loss(i):.4f}, val loss {c.loss(i):.4f}\n"
        text += f"iter {i}: loss {c.loss(i):.4f}, time {c.near(250):.2f}ms, mfu {c.near(40):.2f}%\n"
    return text


def _llm_c(c: _Course) -> str:
    return "".join(
        f"step {i:5d}/{STEPS} | loss {c.loss(i):7.6f} (+0.12z)| norm {c.norm(i):6.4f} (-0.30z)| lr 6.00e-04 | "
        f"{c.near(300):.2f} ms | 59.1% bf16 MFU | 1750000 tok/s\n"
        for i in range(1, NEVER)
    )


def _litgpt(c: _Course) -> str:
    return "".join(
        f"Epoch 1 | iter {4 * i} step {i} | loss train: {c.loss(i):.3f}, val: n/a | iter time: {c.near(210):.2f} ms\n"
        for i in range(1, NEVER)
    )


def _verl(c: _Course) -> str:
    return "".join(
        f"(TaskRunner pid=12) step:{i} - actor/entropy:0.5 - actor/pg_loss:{c.near(0.01):.4f} - actor/grad_norm:"
        f"{c.norm(i):.3f} - critic/rewards/mean:0.4 - timing_s/step:{c.near(60):.2f}\n"
        for i in range(1, NEVER)
    )


def _lightning(c: _Course) -> str:
    text = "epoch,lr-AdamW,step,train_loss_step,val_loss\n"
    for i in range(1, NEVER):
        text += f"0,0.0003,{i},,\n0,,{i},{c.loss(i)},\n"
    return text + f"0,,{STEPS},,{c.loss(1)}\n"


def _objects(c: _Course) -> str:
    return "".join(json.dumps({"step": i, "loss": c.loss(i), "grad_norm": c.norm(i)}) + "\n" for i in range(1, NEVER))


def _axolotl(c: _Course) -> str:
    return "".join(
        f"{{'loss': {c.loss(i):.4f}, 'grad_norm': {c.norm(i)}, 'learning_rate': 0.00019, 'memory/max_mem_active(gib)': "
        f"30.1, 'epoch': {i / 100:.2f}}}\n {i // 3}%|███       | {i}/{STEPS} [10:00<20:00,  2.00s/it]\n"
        for i in range(1, NEVER)
    )


def _dpo(c: _Course) -> str:
    return "".join(
        f"{{'loss': '{c.loss(i):.4g}', 'grad_norm': '{c.norm(i):.4g}', 'learning_rate': '5e-07', 'rewards/chosen': "
        f"'0.1', 'rewards/margins': '1.1', 'logps/chosen': '-250.3', 'epoch': '{i / 100:.2f}'}}\n"
        for i in range(1, NEVER)
    )


def _state(c: _Course) -> str:
    history: list[dict[str, float]] = []
    for i in range(1, NEVER):
        history.append({"epoch": i / 100, "grad_norm": c.norm(i), "learning_rate": 2e-5, "loss": c.loss(i), "step": i})
        if i % 50 == 0 and i < SICK:
            history.append({"epoch": i / 100, "eval_loss": c.loss(i), "eval_runtime": 10.1, "step": i})
    return json.dumps({"best_global_step": None, "epoch": 3.0, "global_step": STEPS, "log_history": history}, indent=2)


def _megatron(c: _Course) -> str:
    return "".join(
        f" [2025-06-01 12:00:00.123456] iteration {i:8d}/   50000 | consumed samples: {i * 512:12d} | elapsed time per "
        f"iteration (ms): {c.near(3100):.1f} | throughput per GPU (TFLOP/s/GPU): {c.near(410):.1f} | learning rate: "
        f"3.0E-04 | global batch size:   512 | lm loss: {c.loss(i):.6E} | loss scale: 1.0 | grad norm: {c.norm(i):.3f} "
        f"| number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i in range(1, NEVER)
    )


FORMATS: dict[Callable[[_Course], str], str] = {
    _torchtune: "step-lines",
    _torchtitan: "step-lines",
    _nanogpt: "step-lines",
    _llm_c: "step-lines",
    _litgpt: "step-lines",
    _verl: "step-lines",
    _lightning: "series-csv",
    _objects: "series-jsonl",
    _axolotl: "hf-console",
    _dpo: "hf-console",
    _state: "hf-trainer-state",
    _megatron: "megatron-console",
}


@pytest.mark.parametrize(("log", "name"), FORMATS.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_sound_course_is_silent(log: Callable[[_Course], str], name: str, checks: Checks) -> None:
    answer = checks(log(_Course(NEVER)))
    assert answer.content["format"] == name
    assert answer.content["records"] >= STEPS
    assert answer.content["canonical"]["loss"] in answer.content["series"]
    assert answer.kinds("warning", "critical") == []


@pytest.mark.parametrize(("log", "name"), FORMATS.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_sick_course_is_told_of_at_its_step(log: Callable[[_Course], str], name: str, checks: Checks) -> None:
    alerts = checks(log(_Course(SICK))).content["alerts"]
    told = [a for a in alerts if a["kind"] == "nonfinite" and a["severity"] != "info"]
    assert [a["first_step"] for a in told] == [SICK]
    # Where a reward is optimised a NaN is a warning.
    assert told[0]["severity"] == ("warning" if log in (_verl, _dpo) else "critical")


def test_readings_of_dmon(checks: Checks) -> None:
    text = "# gpu    pwr  gtemp  mtemp     sm    mem    fb\n# Idx      W      C      C      %      %    MB\n"
    for row in range(5):
        text += (
            f"    0    {300 + row}     60      -     95     40  1024\n    1    290     55      -      0      0     2\n"
        )
    content = checks(text).content
    assert content["format"] == "nvidia-smi-dmon"
    assert content["records"] == 10
    card = content["devices"][0]
    assert (card["power_watts"], card["busy_percent"], card["vram_used_bytes"]) == (304, 95, 1 << 30)
