"""``floatscope check``: lines that say nothing, records of two formats, and the share of the rules."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from floatscope_server.check.report import check
from floatscope_server.readers import HEAD_BYTES, detect
from floatscope_server.rules import RuleParameters

__all__ = ["main"]

_REPEATS = 5


def _silent(lines: int) -> Iterator[str]:
    yield "{'loss': 2.0, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
    for i in range(lines):
        yield f"2026-01-01 00:00:00,{i % 1000:03d} INFO worker loaded shard {i} of the corpus from the cache, as ever\n"


def _trainer_log(lines: int) -> Iterator[str]:
    chance = random.Random(1)
    for i in range(1, lines + 1):
        yield json.dumps({"current_steps": i, "loss": 2 + chance.gauss(0, 0.02), "lr": 1e-5, "epoch": i / 1000}) + "\n"


def _console(lines: int) -> Iterator[str]:
    chance = random.Random(1)
    for i in range(1, lines + 1):
        yield (
            f"{{'loss': {2 + chance.gauss(0, 0.02):.4f}, 'grad_norm': {chance.lognormvariate(0, 0.2):.6f}, "
            f"'learning_rate': {1e-5 * (1 - i / lines / 2):.6e}, 'epoch': {i / 1000:.3f}}}\n"
        )


def _megatron(lines: int) -> Iterator[str]:
    chance = random.Random(1)
    for i in range(1, lines + 1):
        yield (
            f" iteration {i:8d}/ 1000000 | consumed samples: {256 * i:12d} | elapsed time per iteration (ms): 1500.0 | "
            f"learning rate: 1.5E-04 | lm loss: {2 + chance.gauss(0, 0.02):.6E} | loss scale: 1.0 | "
            f"grad norm: {chance.lognormvariate(0, 0.2):.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )


def _read(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        for _ in detect(head).read(iter(lambda: file.read(1 << 16), b"")):
            pass


def _seconds(path: Path, *, rules: bool) -> tuple[float, float, float]:
    """Median, least and most CPU seconds."""
    taken = []
    for _ in range(_REPEATS):
        begun = time.process_time()
        if rules:
            check(path, RuleParameters(), None)
        else:
            _read(path)
        taken.append(time.process_time() - begun)
    return median(taken), min(taken), max(taken)


def main() -> None:
    """Print MB and records per CPU second, least and most of five runs in brackets."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        for name, content, lines in (
            ("silent lines", _silent, 200_000),
            ("trainer_log.jsonl", _trainer_log, 20_000),
            ("Trainer's console", _console, 20_000),
            ("Megatron", _megatron, 10_000),
        ):
            with path.open("w") as file:
                file.writelines(content(lines))
            size = path.stat().st_size / 1e6
            for what, rules in (("read", False), ("read and judged", True)):
                middle, least, most = _seconds(path, rules=rules)
                print(
                    f"{name}, {what}: {size / middle:.3g} MB/s ({size / most:.3g} to {size / least:.3g}), "
                    f"{1e6 * middle / lines:.3g} us a line"
                )
