"""What a spool costs: the training thread, the sender's threads, the disk; and an outage of ten minutes.

Prints per state of the server and of the disk: percentiles of ``put`` in microseconds, CPU of all threads of the sender
in per cent of one core, the longest time that another Python thread waited for the interpreter in milliseconds, bytes
written to the spool per step, growth of resident memory in MB, and what became of the records. The first line says how
long that thread waits without a sender. At the end 6 million samples with no server at all.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from floatscope import wire
from floatscope._sender import Limits, Sender
from floatscope._spool import _segments
from floatscope._spool._spooler import SpoolPlace
from tests.bench.ingest import server_process
from tests.bench.sender import Record, paced, resident_mb
from tests.faults import FaultProxy

_SECONDS = 8.0
_STEPS_PER_S = 20.0
_LAYERS = 6
"""Of 8 statistics each: about 1,000 samples per second."""
_OUTAGE_STEPS = 6000
_OUTAGE_LAYERS = 125
_SAMPLES_OF_LAYER = 8


def main() -> None:
    logging.disable(logging.WARNING)
    held = _Held()
    paced(lambda _: None, _LAYERS, _STEPS_PER_S, _SECONDS)
    print(f"  nobody: interpreter held <= {held.stop():4.1f} ms")
    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as data, server_process(data) as url:
        for state in ("up", "refuse", "blackhole", "trickle"):
            proxy = FaultProxy(url, fault="" if state == "up" else state)
            _measure(state, proxy.url)
            _measure(f"{state}, 500/s", proxy.url, layers=0, steps_per_s=500.0)
            proxy.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _measure("never acks", f"http://127.0.0.1:{silent.getsockname()[1]}")
    with _slow_disk():
        _measure("slow disk", "http://127.0.0.1:9")
    _measure("no spool", "http://127.0.0.1:9", spool=False)
    _outage()
    logging.disable(logging.NOTSET)


@contextmanager
def _slow_disk() -> Iterator[None]:
    write, sync = _segments._write_all, os.fdatasync

    def slow_write(descriptor: int, buffers: list[bytes]) -> int:
        time.sleep(0.5)
        return write(descriptor, buffers)

    def slow_sync(descriptor: int) -> None:
        time.sleep(2.0)
        sync(descriptor)

    _segments._write_all = slow_write  # type: ignore[assignment]
    os.fdatasync = slow_sync  # type: ignore[assignment]
    yield
    _segments._write_all = write
    os.fdatasync = sync


def _measure(
    state: str, url: str, *, spool: bool = True, layers: int = _LAYERS, steps_per_s: float = _STEPS_PER_S
) -> None:
    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as directory:
        place = SpoolPlace(directory=Path(directory)) if spool else None
        identity = wire.Identity(run="bench", writer=secrets.token_hex(16))
        sender = Sender(identity, url, limits=Limits(flush_s=1.0), spool=place)
        held = _Held()
        before = resident_mb()
        costs, elapsed = paced(sender.put, layers, steps_per_s, _SECONDS)
        stats = sender.stats()
        written = sum(path.stat().st_size for path in Path(directory).rglob("*"))
        longest = held.stop()
        p50, p99, worst = np.percentile(np.array(costs) * 1e6, [50, 99, 100])
        print(
            f"  {state:18}  put us p50 {p50:5.1f} p99 {p99:5.1f} max {worst:6.1f}"
            f"  cpu {100 * stats.cpu_s / elapsed:5.2f} %  interpreter held <= {longest:4.1f} ms"
            f"  {written / len(costs):6.0f} bytes/step  rss {resident_mb() - before:+5.1f} MB"
            f"  acknowledged {stats.acknowledged} waiting {stats.waiting} lost {stats.lost}"
        )
        sender.close("bench over")


class _Held:
    """A thread that sleeps 1 ms at a time and notes how much later than that it gets the interpreter back."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._late: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            start = time.perf_counter()
            time.sleep(0.001)
            self._late.append(time.perf_counter() - start - 0.001)

    def stop(self) -> float:
        """The 99.9th percentile in ms: the very longest is the machine's, not ours."""
        self._end.set()
        self._thread.join()
        return float(np.percentile(self._late, 99.9) * 1e3)


def _outage() -> None:
    """6 million samples without a server, then the server comes back."""
    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as directory:
        place = SpoolPlace(directory=Path(directory) / "spool")
        identity = wire.Identity(run="outage", writer=secrets.token_hex(16))
        with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as data, server_process(data) as url:
            proxy = FaultProxy(url, fault="refuse")
            sender = Sender(identity, proxy.url, limits=Limits(flush_s=300.0), spool=place)
            for step in range(50):  # what grows once: buffers, modules
                sender.put(Record(step, _OUTAGE_LAYERS))
            time.sleep(1.0)
            before, most = resident_mb(), 0.0
            for step in range(50, _OUTAGE_STEPS):
                sender.put(Record(step, _OUTAGE_LAYERS))
                if step % 20 == 0:
                    most = max(most, resident_mb() - before)
                    while len(sender._queue) > 20:
                        time.sleep(0.005)
            while len(sender._queue):
                time.sleep(0.05)
            most = max(most, resident_mb() - before)
            held = sum(path.stat().st_size for path in place.directory.rglob("*"))
            proxy.fault = ""
            began = time.perf_counter()
            sender.close("finished")
            stats = sender.stats()
            proxy.close()
            samples = _OUTAGE_STEPS * _OUTAGE_LAYERS * _SAMPLES_OF_LAYER
            print(
                f"  outage: {samples / 1e6:.0f} million samples, memory {most:+.1f} MB, spool {held / 1e6:.1f} MB,"
                f" delivered in {time.perf_counter() - began:.1f} s: acknowledged {stats.acknowledged} of {stats.put},"
                f" lost {stats.lost}"
            )
