"""Fill a store, ask it, open it again: every figure with how it was come by."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from floatscope import wire
from floatscope_server.bench.data import Synthetic, samples
from floatscope_server.bench.questions import Asker, Figures
from floatscope_server.bench.sending import BenchError, Paced, Sender
from floatscope_server.bench.targets import Target, Use, in_process, over_http, spent
from floatscope_server.bench.volume import stored_bytes, wait_until_sealed
from floatscope_server.settings import Settings
from floatscope_server.store.replay import WARM_UP_STEPS
from floatscope_server.tiles.geometry import COLUMNS

__all__ = ["RUN", "Plan", "ingest", "query"]

RUN = "bench"
_SAMPLES_A_SECOND, _STEPS_A_SECOND = 480_000, 100
"""Most of the ingest beside the questions: 100 steps of 300 layers, two kinds and eight statistics."""
_COMPARED = 5
_CELLS_COMPARED = 1_500_000
"""Layers times steps times ranks of each run beside the first: 5000 steps of 300 layers, beyond which a heat map costs
the same."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure. ``batch`` is the number of steps of a block, fewer where they would not fit in one."""

    steps: int
    layers: int
    kinds: int = 2
    ranks: int = 1
    batch: int = 10
    questions: int = 200
    http: bool = False
    settings: Settings
    seed: int = 0

    @property
    def data(self) -> Synthetic:
        """What is sent."""
        return Synthetic(layers=self.layers, kinds=self.kinds, ranks=self.ranks, seed=self.seed)

    def batch_of(self, data: Synthetic) -> int:
        """Steps that fit in a block."""
        most = (wire.MAX_BLOCK_BYTES - 64 * 1024) // data.bytes_per_step
        if most < 1:
            raise BenchError(f"a step of {self.layers} layers and {self.kinds} kinds does not fit in one block")
        return min(self.batch, most)

    def target(self) -> AbstractContextManager[Target]:
        """Started."""
        return over_http(self.settings) if self.http else in_process(self.settings)


@dataclass(kw_only=True)
class Filled:
    """What it took to fill a store."""

    seconds: float = 0.0
    sealed_seconds: float = 0.0
    samples: int = 0
    batch: int = 0
    waits: list[float] = field(default_factory=list)
    cpu: dict[str, Use] = field(default_factory=dict)
    sealed: int = 0

    def results(self, stored: int) -> dict[str, object]:
        """By the names that ``--json`` has."""
        p50, p99, most = (1e3 * float(value) for value in np.percentile(self.waits, (50, 99, 100)))
        # The main thread makes and sends the data.
        ours = {name: use.cpu for name, use in self.cpu.items() if name != "MainThread"}
        return {
            "samples": self.samples,
            "ingest_samples_per_s": self.samples / self.seconds,
            "sealed_samples_per_s": self.samples / self.sealed_seconds,
            "ack_p50_ms": p50,
            "ack_p99_ms": p99,
            "ack_max_ms": most,
            "blocks_per_s": len(self.waits) / self.seconds,
            "steps_per_block": self.batch,
            "cpu_s_per_1e9_samples": 1e9 * sum(ours.values()) / self.samples,
            "cpu_s_by_thread": {name: use.cpu for name, use in self.cpu.items() if use.cpu >= 0.01},
            "sealed_steps": self.sealed,
            "bytes_per_sample": stored / self.samples,
        }


def ingest(plan: Plan, say: Say) -> dict[str, object]:
    """Blocks as fast as they are acknowledged; then until they are in tiles."""
    with plan.target() as target:
        filled, sender = _fill(plan, target, RUN, plan.steps, say)
        sender.end()
        results = filled.results(stored_bytes(plan.settings))
        results["rss_mb"] = _anonymous_mb(target.pid)
    return results


def query(plan: Plan, say: Say) -> dict[str, object]:
    """Questions while ingest goes on; then a reopened store's first answer."""
    with plan.target() as target:
        filled, sender = _fill(plan, target, RUN, plan.steps, say)
        results = filled.results(stored_bytes(plan.settings))
        others = [f"{RUN}-{number}" for number in range(1, _COMPARED)]
        for name in others:
            _fill(plan, target, name, min(plan.steps, max(1, _CELLS_COMPARED // (plan.layers * plan.ranks))), say)[
                1
            ].end()
        step = samples(steps=1, layers=plan.layers, kinds=plan.kinds, ranks=plan.ranks)
        rate = min(_STEPS_A_SECOND, _SAMPLES_A_SECOND / step)
        pace = Paced(sender, batch=filled.batch, interval=filled.batch / rate)
        sender.waits.clear()
        pace.start()
        try:
            asker = Asker(target, sender.data, runs=[RUN, *others], head=lambda: pace.head)
            figures = [asker.measure(name, plan.questions, say) for name in asker.names]
        finally:
            kept = pace.stop()
        results |= _named(figures)
        results["ingest_pace_kept"] = kept
        results["paced_ack_p99_ms"] = 1e3 * float(np.percentile(sender.waits, 99))
        results["rss_mb"] = _anonymous_mb(target.pid)
        sender.end()
    results["reopen_s"] = _reopen(plan)
    return results


def _fill(plan: Plan, target: Target, run: str, steps: int, say: Say) -> tuple[Filled, Sender]:
    data = plan.data
    line = target.line()
    sender = Sender(line, data, run)
    batch = plan.batch_of(data)
    before = target.used()
    begin = time.perf_counter()
    while sender.head < steps:
        sender.send(min(batch, steps - sender.head))
    sender.wait()
    filled = Filled(seconds=time.perf_counter() - begin, batch=batch, waits=list(sender.waits))
    filled.samples = samples(steps=steps, layers=plan.layers, kinds=plan.kinds, ranks=plan.ranks)
    filled.sealed = wait_until_sealed(plan.settings, run, (steps - WARM_UP_STEPS) // COLUMNS * COLUMNS)
    filled.sealed_seconds = time.perf_counter() - begin
    filled.cpu = spent(before, target.used())
    say(
        f"{run}: {steps} steps in {filled.seconds:.1f} s, {filled.sealed} of them in tiles after "
        f"{filled.sealed_seconds:.1f} s"
    )
    return filled, sender


def _named(figures: list[Figures]) -> dict[str, object]:
    named: dict[str, object] = {}
    for each in figures:
        named |= each.results()
    return named


def _reopen(plan: Plan) -> float:
    """Seconds from the start to the heat map of the whole run."""
    begin = time.perf_counter()
    with plan.target() as target:
        target.ask(f"/api/v1/runs/{RUN}/heatmap", kind="grad", metric="headroom", columns=600)
        return time.perf_counter() - begin


def _anonymous_mb(pid: int) -> float | None:
    """Anonymous memory of a process, None where the system does not tell; 0 is this one."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), None)
