"""Trainings of several kinds: sound ones are silent above info, those that break are found where they do."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.check.conftest import Checks

STEPS = 300


def _loss(step: int, chance: random.Random, first: float = 2.5, last: float = 1.2, noise: float = 0.03) -> float:
    return last + (first - last) * math.exp(-4 * step / STEPS) + chance.gauss(0, noise)


def _trainer(chance: random.Random, broken: int = STEPS + 1) -> str:
    text = ""
    for step in range(1, STEPS + 1):
        loss, norm = f"{_loss(step, chance):.4f}", f"{chance.lognormvariate(0, 0.2):.4f}"
        if step >= broken:
            loss, norm = "0.0", "nan"
        text += (
            f"\r {step // 3}%|##  | {step}/{STEPS} [00:10<1:00:00,  2.00s/it]\n{{'loss': {loss}, 'grad_norm': {norm}, "
            f"'learning_rate': {1e-5 * (1 - step / STEPS)}, 'epoch': {step / 100}}}\n"
        )
    return text


def _llamafactory(chance: random.Random, diverges: int = STEPS + 1) -> str:
    rows = []
    for step in range(1, STEPS + 1):
        loss = _loss(step, chance) + max(step - diverges, 0) * 0.05
        at = 3 * 10 * step
        clock = f"{at // 3600}:{at // 60 % 60:02d}:{at % 60:02d}"
        rows.append(json.dumps({"current_steps": 10 * step, "loss": loss, "lr": 1e-5, "elapsed_time": clock}))
    return "\n".join(rows)


def _megatron(chance: random.Random, *, fp16: bool, lost: int = STEPS + 1) -> str:
    """Start-up with 20 halvings of the scale, one in 100 later on; from ``lost`` on the loss is left out."""
    text, scale = "", 2.0**32
    for step in range(1, STEPS + 1):
        skips = fp16 and (step <= 20 or step % 100 == 0)
        scale = scale / 2 if skips else scale
        loss = "" if skips or step >= lost else f" lm loss: {_loss(step, chance, 9.5, 3.0):.6E} |"
        text += (
            f" [2026-05-28 22:26:20] iteration {step:8d}/   50000 | elapsed time per iteration (ms): "
            f"{1500 + chance.gauss(0, 10):.1f} | learning rate: 1.5E-04 |{loss} "
            f"loss scale: {scale if fp16 else 1.0:.1f} | grad norm: {chance.lognormvariate(0, 0.2):.3f} | "
            f"number of skipped iterations: {int(skips):3d} | number of nan iterations:   0 |\ntime (ms)\n"
        )
    return text


def _deepspeed(chance: random.Random, collapses: int = STEPS + 1) -> str:
    text, scale = "", 65536.0
    for step in range(1, STEPS + 1):
        text += f"\r {step // 3}%|##  | {step}/{STEPS} [00:10<1:00:00,  2.00s/it]"
        if step in (1, 2, 3, 150, 250) or step >= collapses:
            text += (
                "[2023-06-07 22:09:24,000] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 "
                f"Skipping step. Attempted loss scale: {scale}, reducing to {scale / 2}"
            )
            scale /= 2
        text += "\n"
        if step % 10 == 0:
            text += f"{{'loss': {_loss(step, chance):.4f}, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
    return text


def _reward(chance: random.Random) -> str:
    return "".join(
        f"{{'loss': {chance.choice([0.0, -0.0, 0.01, -0.02])}, 'grad_norm': {chance.choice([0.0, 0.3, 0.5, 0.4])}, "
        f"'learning_rate': 1e-06, 'reward': 0.5, 'reward_std': 0.2, 'kl': 0.01, 'epoch': {step / 100}}}\n"
        for step in range(STEPS)
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["trainer", "llamafactory", "megatron bf16", "megatron fp16", "deepspeed", "reward"])
def test_sound(checks: Checks, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    text = {
        "trainer": lambda: _trainer(chance),
        "llamafactory": lambda: _llamafactory(chance),
        "megatron bf16": lambda: _megatron(chance, fp16=False),
        "megatron fp16": lambda: _megatron(chance, fp16=True),
        "deepspeed": lambda: _deepspeed(chance),
        "reward": lambda: _reward(chance),
    }[kind]()
    answer = checks(text)
    assert answer.status == 0
    assert answer.kinds("warning", "critical") == []
    assert answer.content["unread"]["lines"] == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_broken(checks: Checks, seed: int) -> None:
    chance = random.Random(seed)
    for text, kind, first, last in (
        (_trainer(chance, broken=200), "nonfinite", 200, 200),
        (_trainer(chance, broken=200), "loss_zero", 200, 200),
        (_llamafactory(chance, diverges=200), "loss_divergence", 2010, 2300),
        (_megatron(chance, fp16=False, lost=200), "nonfinite", 200, 200),
        (_deepspeed(chance, collapses=200), "loss_scale_collapse", 204, 205),
    ):
        answer = checks(text)
        found = [a for a in answer.content["alerts"] if a["kind"] == kind and a["severity"] == "critical"]
        assert [first <= a["first_step"] <= last for a in found] == [True], (kind, found)
        assert answer.status == 1
