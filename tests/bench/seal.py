"""What sealing costs: CPU and bytes per sample, the longest seal of a tile, and acknowledgements meanwhile.

How long the threads waited for a core is given beside each figure: on a machine that does other work, wall time says
little and CPU time most.

A sample is one statistic of one layer, kind and step: eight statistics, two kinds. Magnitudes are log-normal by layer
with an AR(1) noise of half an octave, as in gradients; their mantissas are noise.
"""

from __future__ import annotations

import os
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from sqlalchemy import select
from sqlmodel import Session

from floatscope import wire
from floatscope_server.alerts.models import Evaluated
from floatscope_server.models import Writer
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer

_KINDS = ("grad", "act")
_FIELDS = (
    *(("count", "<i8"), ("zeros", "<i8"), ("nans", "<i8"), ("infs", "<i8")),
    *(("absmax", "<f4"), ("absmin", "<f4"), ("sum", "<f8"), ("sumsq", "<f8")),
)
_ELEMENTS = 1 << 20
_IN_FLIGHT = 8


def main() -> None:
    for layers, steps in ((300, 4096), (2000, 1024)):
        _sealed_alone(layers, steps)
    _saturated(1, commit_interval_s=1e-4, in_flight=1)
    for batch in (1, 10, 30):
        _saturated(batch)
    _paced(1e6)


def _sealed_alone(layers: int, steps: int) -> None:
    with opened() as store:
        sender = Sender(store, layers)
        for first in range(0, steps + 308, 4):
            sender.send(first, 4)
        sender.wait()
        judge(store)
        sealer = Sealer(store, lost_after_s=3600.0)
        longest = 0.0
        cores = _Cores()
        while True:
            begin = time.perf_counter()
            done = sealer.seal_due()
            if not done:
                break
            longest = max(longest, (time.perf_counter() - begin) / done)
        wall, cpu, waited = cores.passed()
        samples = sealer.sealed * 256 * layers * len(_FIELDS)
        size = store.write(lambda session: session.connection().exec_driver_sql(_TILE_BYTES).scalar_one())
        print(
            f"  {layers} layers: {samples / wall / 1e6:.1f} million samples/s sealed, "
            f"{cpu / samples * 1e9:.0f} CPU s per 1e9, {size / samples:.2f} bytes per sample, "
            f"a tile in {longest * 1e3:.0f} ms at most, {sealer.failed} failed; {waited}"
        )


class _Cores:
    """Wall and CPU time, and how long threads that live now have waited for a core (Linux; else 0)."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), time.process_time(), self._waits()

    @staticmethod
    def _waits() -> dict[int, float]:
        waits: dict[int, float] = {}
        for thread in threading.enumerate():
            with suppress(OSError):
                fields = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
                waits[thread.native_id or 0] = int(fields[1]) / 1e9
        return waits

    def passed(self) -> tuple[float, float, str]:
        wall, cpu, before = self._begin
        waited = sum(wait - before.get(thread, 0.0) for thread, wait in self._waits().items())
        wall = time.perf_counter() - wall
        return wall, time.process_time() - cpu, f"threads waited {waited:.1f} s for a core in {wall:.1f} s"


_TILE_BYTES = "SELECT (SELECT sum(length(data)) FROM tile_raw) + (SELECT sum(length(data)) FROM tile)"


def _saturated(batch: int, *, commit_interval_s: float = 0.02, in_flight: int = _IN_FLIGHT) -> None:
    with opened(commit_interval_s) as store, _sealing(store) as sealer:
        sender = Sender(store, 300, in_flight)
        blocks = [sender.block(first, batch) for first in range(0, max(600, 60 * batch), batch)]
        steps = 0
        cores = _Cores()
        end = time.perf_counter() + 10.0
        while time.perf_counter() < end:
            sender.send(steps, batch, blocks[steps // batch % len(blocks)])
            steps += batch
        sender.wait()
        wall, cpu, waited = cores.passed()
        samples = steps * 300 * len(_KINDS) * len(_FIELDS)
        print(
            f"  saturated, {batch} steps a block, {in_flight} in flight: {samples / wall / 1e6:.1f} million samples/s, "
            f"{steps / batch / wall:.0f} blocks/s in {store.counters.commits / wall:.0f} commits/s, "
            f"{cpu / samples * 1e9:.0f} CPU s per 1e9, {sealer.sealed} tiles; "
            f"acknowledged after {percentiles(sender.waits)}; {waited}"
        )


def _paced(rate: float) -> None:
    with opened() as store, _sealing(store) as sealer:
        sender = Sender(store, 300)
        batch = 5
        blocks = [sender.block(first, batch) for first in range(0, 600, batch)]
        interval = batch * 300 * len(_KINDS) * len(_FIELDS) / rate
        begin = time.perf_counter()
        cores = _Cores()
        for number in range(int(20.0 / interval)):
            pause = begin + number * interval - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            sender.send(number * batch, batch, blocks[number % len(blocks)])
        sender.wait()
        print(
            f"  paced to {rate / 1e6:.1f} million samples/s, {sealer.sealed} tiles meanwhile: acknowledged after "
            f"{percentiles(sender.waits)}; {cores.passed()[2]}"
        )


def percentiles(waits: list[float]) -> str:
    p50, p99, top = np.percentile(np.array(waits) * 1e3, (50, 99, 100))
    return f"{p50:.1f} / {p99:.1f} / {top:.1f} ms (p50 / p99 / max)"


@contextmanager
def opened(commit_interval_s: float = 0.02) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as folder:
        store = Store(Settings(data=Path(folder), commit_interval_s=commit_interval_s))
        store.start()
        try:
            yield store
        finally:
            store.stop()


@contextmanager
def _sealing(store: Store) -> Iterator[Sealer]:
    """With the sealer's thread, and marks that move as if the rules judged at once."""
    sealer = Sealer(store, lost_after_s=3600.0)
    store.observers.append(sealer.observe)
    store.lagging = sealer.behind
    ended = threading.Event()

    def judging() -> None:
        while not ended.wait(0.5):
            judge(store)

    thread = threading.Thread(target=judging)
    thread.start()
    sealer.start()
    try:
        yield sealer
    finally:
        sealer.stop()
        ended.set()
        thread.join()


def judge(store: Store) -> None:
    def mark(session: Session) -> None:
        for writer in session.scalars(select(Writer)).all():
            session.merge(
                Evaluated(writer=writer.id, run_id=writer.run_id, attempt=writer.attempt, seq=writer.last_seq, step=0)
            )

    store.write(mark)


class Sender:
    """One writer."""

    def __init__(self, store: Store, layers: int, in_flight: int = _IN_FLIGHT) -> None:
        self.waits: list[float] = []
        self._store = store
        self._layers = layers
        self._in_flight = in_flight
        self._writer = secrets.token_hex(16)
        self._seq = 0
        self._sent: dict[int, float] = {}
        self._acks: queue.Queue[tuple[float, wire.ServerMessage]] = queue.Queue()
        self._rng = np.random.default_rng(0)
        self._level = self._rng.normal(-12, 4, layers)
        self._noise = np.zeros(layers)
        table = tuple(wire.Layer(index=i, name=f"l{i}", module_type="Linear", order=i) for i in range(layers))
        identity = wire.Identity(run="bench", writer=self._writer)
        self._submit(
            wire.Hello(
                protocol_min=1,
                protocol_max=1,
                agent="bench",
                identity=identity,
                wall_ns=0,
                monotonic_ns=0,
                layers=table,
            )
        )
        _, welcome = self._acks.get(timeout=30)
        assert isinstance(welcome, wire.Welcome), welcome

    def block(self, first: int, steps: int) -> tuple[wire.Summaries, ...]:
        layers = np.arange(self._layers, dtype="<u4").tobytes()
        return tuple(
            wire.Summaries(kind=kind, first_step=first, steps=steps, layers=layers, fields=self._fields(steps))
            for kind in _KINDS
        )

    def send(self, first: int, steps: int, summaries: tuple[wire.Summaries, ...] | None = None) -> None:
        """The content of ``summaries`` as steps from ``first`` on."""
        while len(self._sent) >= self._in_flight:
            self._take()
        parts = self.block(first, steps) if summaries is None else summaries
        moved = tuple(
            wire.Summaries(kind=s.kind, first_step=first, steps=steps, layers=s.layers, fields=s.fields) for s in parts
        )
        self._seq += 1
        block = wire.make_block(self._seq, wire.Body(first_step=first, steps=steps, summaries=moved))
        self._sent[self._seq] = time.perf_counter()
        self._submit(block)

    def wait(self) -> None:
        while self._sent:
            self._take()

    def _submit(self, message: wire.AgentMessage) -> None:
        self._store.submit(self._writer, message, lambda answer: self._acks.put((time.perf_counter(), answer)))

    def _take(self) -> None:
        at, answer = self._acks.get(timeout=60)
        assert isinstance(answer, wire.Ack), answer
        for seq in [seq for seq in self._sent if seq <= answer.seq]:
            self.waits.append(at - self._sent.pop(seq))

    def _fields(self, steps: int) -> tuple[wire.Field, ...]:
        rows = []
        for _ in range(steps):
            self._noise = 0.9 * self._noise + self._rng.normal(0, 0.25, self._layers)
            rows.append(self._level + self._noise)
        rms = np.exp2(np.array(rows))
        shape = rms.shape
        values = {
            "count": np.full(shape, _ELEMENTS),
            "zeros": self._rng.binomial(_ELEMENTS, 0.02, shape),
            "nans": np.zeros(shape),
            "infs": np.where(self._rng.random(shape) < 1e-6, 1, 0),
            "absmax": rms * np.exp2(self._rng.normal(3, 0.5, shape)),
            "absmin": rms * np.exp2(self._rng.normal(-20, 1, shape)),
            "sum": rms * self._rng.normal(0, 0.01, shape) * _ELEMENTS,
            "sumsq": rms**2 * _ELEMENTS,
        }
        return tuple(
            wire.Field(name=name, dtype=dtype, data=values[name].astype(dtype).tobytes()) for name, dtype in _FIELDS
        )


if __name__ == "__main__":
    print(f"sealing, {os.cpu_count()} cores")
    main()
