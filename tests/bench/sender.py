"""What handing over a step costs the training thread, and what the sender's threads cost beside it.

The server is silent, then refuses. Between two steps the thread computes, as a training does, so that a call finds as
little of ours in the caches as it does there: it takes what that takes, however many layers a record has.

Prints per state: percentiles of ``put`` in microseconds, CPU of the background threads in per cent of one core, growth
of resident memory in MB, and what became of the records.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from floatscope import wire
from floatscope._record import StepRecord, SummaryRows
from floatscope._sender import Limits, Sender

_PAGE_BYTES = 4096
_SECONDS = 5.0
_NOWHERE = "http://127.0.0.1:9"
_COMPUTED = np.zeros(1 << 20)
"""8 MB, so that little of ours stays in the core's own caches."""


class Record:
    """A step whose numbers are there at once."""

    def __init__(self, step: int, layers: int) -> None:
        self.step = step
        self.layers: tuple[wire.Layer, ...] = ()
        self.nbytes = 200 + layers * 512 * 8
        self._layers = layers

    def ready(self) -> bool:
        return True

    def resolve(self) -> StepRecord:
        scalars = {"loss": 1.0, "lr": 1e-4, "grad_norm": 1.0}
        return StepRecord(step=self.step, scalars=scalars, summaries=self._rows() if self._layers else ())

    def _rows(self) -> tuple[SummaryRows, ...]:
        count = self._layers
        hist = np.zeros((count, 512), np.int64)
        hist[:, 220:250] = self.step + 1
        fields: dict[str, np.ndarray] = {
            name: np.full(count, 4096, np.int64) for name in ("count", "zeros", "nans", "infs")
        }
        for name in ("absmax", "absmin", "scale", "under", "over_low", "over_high", "floor"):
            fields[name] = np.ones(count, np.float32)
        fields |= {name: np.ones(count) for name in ("sum", "sumsq")}
        return (SummaryRows(kind="grad", layers=np.arange(count, dtype=np.uint32), fields=fields, hist=hist),)


def resident_mb() -> float:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6


def paced(put: Callable[[Record], None], layers: int, steps_per_s: float, seconds: float) -> tuple[list[float], float]:
    """Hand steps over at a steady pace: what each took in seconds, and how long all of it was."""
    costs: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        record = Record(len(costs), layers)
        start = time.perf_counter()
        put(record)
        costs.append(time.perf_counter() - start)
        while time.perf_counter() - began < len(costs) / steps_per_s:
            np.add(_COMPUTED, 1.0, out=_COMPUTED)
    return costs, time.perf_counter() - began


def measure(state: str, url: str, layers: int, steps_per_s: float, seconds: float) -> None:
    """Run one sender for ``seconds`` and print its row."""
    sender = Sender(wire.Identity(run="bench", writer=secrets.token_hex(16)), url, limits=Limits(flush_s=1.0))
    before = resident_mb()
    costs, elapsed = paced(sender.put, layers, steps_per_s, seconds)
    stats = sender.stats()
    p50, p99, worst = np.percentile(np.array(costs) * 1e6, [50, 99, 100])
    print(
        f"{state:9} layers {layers:5}  {len(costs) / elapsed:6.0f} steps/s  put us p50 {p50:5.1f} p99 {p99:6.1f} "
        f"max {worst:7.1f}  cpu {100 * stats.cpu_s / elapsed:5.2f} %  rss {resident_mb() - before:+6.1f} MB  "
        f"acknowledged {stats.acknowledged} waiting {stats.waiting} lost {stats.lost}"
    )
    sender.close("bench over")


def main() -> None:
    logging.disable(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for state, url in {"silent": f"http://127.0.0.1:{silent.getsockname()[1]}", "refused": _NOWHERE}.items():
            for layers, steps_per_s in ((0, 100.0), (200, 50.0), (1000, 10.0)):
                measure(state, url, layers, steps_per_s, _SECONDS)
    logging.disable(logging.NOTSET)
