"""What short turns of a server's threads bring and cost: intervals in alternation, in one process.

Questions beside 100 steps a second, then blocks of one step and of ten at full speed, as ratios to Python's 5 ms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from floatscope_server.bench.data import Synthetic
from floatscope_server.bench.questions import Asker
from floatscope_server.bench.sending import Paced, Sender
from floatscope_server.bench.targets import Target, in_process, spent
from floatscope_server.settings import Settings

_INTERVALS = (0.005, 0.001, 0.0002)
_ROUNDS = 30
_STEPS = 2500
_QUESTIONS = ("heatmap", "scalars", "latest", "tail")
_AT_ONCE = 10
_BLOCKS = 40


def main() -> None:
    data = Synthetic(layers=300, kinds=2)
    for batch in (0, 1, 10):
        folder = tempfile.TemporaryDirectory(prefix="floatscope-bench-")
        with folder, in_process(Settings(data=Path(folder.name))) as target:
            if batch:
                _blocks(target, data, batch)
            else:
                _questions(target, data)


def _shuffled() -> Iterator[float]:
    rng = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        yield from rng.permutation(_INTERVALS).tolist()


def _questions(target: Target, data: Synthetic) -> None:
    sender = Sender(target.line(), data, "run")
    while sender.head < _STEPS:
        sender.send(10)
    sender.wait()
    pace = Paced(sender, batch=10, interval=0.1)
    pace.start()
    asker = Asker(target, data, runs=["run"], head=lambda: pace.head)
    for name in _QUESTIONS:
        took: dict[float, list[float]] = {interval: [] for interval in _INTERVALS}
        for interval in _shuffled():
            sys.setswitchinterval(interval)
            figures = asker.measure(name, _AT_ONCE, lambda _: None)
            waited = [1e3 * use.waited for use in figures.uses]
            took[interval] += [ms - wait for ms, wait in zip(figures.took, waited, strict=True)]
        for interval in _INTERVALS:
            p50, p90, p99 = np.percentile(took[interval], (50, 90, 99))
            print(f"  {name}, {1e3 * interval:g} ms: {p50:.1f} / {p90:.1f} / {p99:.1f} ms without waiting for a core")
    pace.stop()


def _blocks(target: Target, data: Synthetic, batch: int) -> None:
    sender = Sender(target.line(), data, "run")
    rates: dict[float, list[float]] = {interval: [] for interval in _INTERVALS}
    costs: dict[float, list[float]] = {interval: [] for interval in _INTERVALS}
    for _ in range(300 // batch):
        sender.send(batch)
    sender.wait()
    for interval in _shuffled():
        sys.setswitchinterval(interval)
        before, begin = target.used(), time.perf_counter()
        for _ in range(_BLOCKS):
            sender.send(batch)
        sender.wait()
        rates[interval].append(_BLOCKS / (time.perf_counter() - begin))
        used = spent(before, target.used())
        costs[interval].append(sum(use.cpu for name, use in used.items() if name != "MainThread"))
    for interval in _INTERVALS[1:]:
        rate = np.percentile(np.array(rates[interval]) / rates[_INTERVALS[0]], (25, 50, 75))
        cost = np.percentile(np.array(costs[interval]) / costs[_INTERVALS[0]], (25, 50, 75))
        print(f"  blocks of {batch}, {1e3 * interval:g} ms: blocks/s x {np.round(rate, 2)}, CPU x {np.round(cost, 2)}")


if __name__ == "__main__":
    main()
