"""Questions of a page, asked in process of a store on disk while 480,000 samples a second are written and sealed.

``python -m tests.bench.window LAYERS STEPS`` asks one size only. The tiles are written directly; log-normal magnitudes,
so that their mantissas are noise. Several tiles have the same content, but each is a row of its own.
"""

from __future__ import annotations

import queue
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import numpy as np
from sqlalchemy import insert
from sqlmodel import Session, select

from floatscope import wire
from floatscope_server.frame import FIELD_DTYPES, Frame
from floatscope_server.models import Stream, StreamState, Tile, TileRaw
from floatscope_server.query.heatmap import HeatQuestion, heat_map
from floatscope_server.query.layers import latest_values, layer_series, tail_values
from floatscope_server.query.layertable import LayerTables
from floatscope_server.query.line import run_named
from floatscope_server.query.window import TileReader
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.store.sealer import Sealer
from floatscope_server.tiles.geometry import Geometry
from floatscope_server.tiles.planes import Planes, pooled_planes, raw_planes
from floatscope_server.tiles.pool import pool
from floatscope_server.tiles.rows import beside, encoded

_KINDS = ("grad", "act")
_SIZES = ((300, 20_000), (2_000, 18_000))
_QUESTIONS = 400
_BATCH_CELLS = 3000
"""Layers and steps of a block: more does not fit into one."""
_STEPS_A_SECOND = 100


def main(sizes: tuple[tuple[int, int], ...] = _SIZES) -> None:
    for layers, steps in sizes:
        with tempfile.TemporaryDirectory(prefix="floatscope-bench-") as data:
            print(f"  {layers} layers, {steps} steps, {len(_KINDS)} kinds")
            _measure(Path(data), layers, steps)


def _measure(data: Path, layers: int, steps: int) -> None:
    store = Store(Settings(data=data))
    store.start()
    sealer = Sealer(store, lost_after_s=60.0)
    try:
        writer = _Writer(store, layers)
        first = steps // 256 * 256 - 256
        writer.deliver(0, 1)
        begin = time.perf_counter()
        geometry = Geometry.for_layers(layers)
        store.write(lambda session: _fill(session, geometry, layers, first))
        print(f"  written in {time.perf_counter() - begin:.1f} s")
        for at in range(first, steps, writer.batch):
            writer.deliver(at, writer.batch)
        _ask(store, layers, "at rest", lambda: steps)
        store.observers.append(sealer.observe)
        sealer.start()
        ingest = _Ingest(writer, steps)
        ingest.start()
        _ask(store, layers, f"beside {ingest.samples_a_second:,} samples/s", lambda: ingest.head)
        ingest.stop()
        print(f"  ingest reached {ingest.reached():.0%} of its pace, {sealer.sealed} tiles sealed beside the questions")
    finally:
        sealer.stop()
        store.stop()


def _ask(store: Store, layers: int, when: str, head: Callable[[], int]) -> None:
    reader = TileReader(96 << 20)
    tables = LayerTables(lambda: store.layers_version, shared=False)
    rng = np.random.default_rng(0)
    commit = None

    def ask(question: Callable[[Session], object]) -> tuple[float, float]:
        begin, cpu = time.perf_counter(), time.thread_time()
        version = tables.version()
        with store.read() as session:
            tables.attach(session, version)
            question(session)
        return (time.perf_counter() - begin) * 1e3, (time.thread_time() - cpu) * 1e3

    def stretch() -> tuple[int, int]:
        end = head()
        span = int(np.exp(rng.uniform(np.log(300), np.log(end))))
        first = int(rng.integers(0, end - span + 1))
        return first, first + span - 1

    def heat(first: int | None, last: int | None) -> Callable[[Session], object]:
        asked = HeatQuestion(kind=_KINDS[rng.integers(2)], first=first, last=last)
        return lambda session: heat_map(session, reader, run_named(session, "run"), asked)

    def series(first: int | None, last: int | None) -> Callable[[Session], object]:
        return lambda session: layer_series(
            session,
            reader,
            run_named(session, "run"),
            layer=str(rng.integers(layers)),
            kind="grad",
            metrics=None,
            chosen="auto",
            attempt=None,
            first=first,
            last=last,
            points=600,
        )

    def latest(session: Session) -> object:
        run = run_named(session, "run")
        return latest_values(session, reader, run, kind="grad", metrics=("headroom", "rms"), chosen="auto", names=None)

    def tail(session: Session) -> object:
        nonlocal commit
        run = run_named(session, "run")
        found = tail_values(
            session,
            reader,
            run,
            kind="grad",
            metric="headroom",
            chosen="auto",
            since=None,
            commit=commit,
            most=600,
            names=None,
        )
        commit = str(found.meta["commit"])
        return found

    questions: tuple[tuple[str, Callable[[], Callable[[Session], object]]], ...] = (
        ("heat map, whole run", lambda: heat(None, None)),
        ("heat map, any range", lambda: heat(*stretch())),
        ("series of a layer, whole run", lambda: series(None, None)),
        ("series of a layer, any range", lambda: series(*stretch())),
        ("latest", lambda: latest),
        ("tail", lambda: tail),
    )
    for _, make in questions:
        ask(make())
    for name, make in questions:
        took = []
        for _ in range(_QUESTIONS):
            took.append(ask(make()))
            # Somebody who looks at a page, not one who saturates the server.
            time.sleep(0.005)
        wall, cpu = ([each[place] for each in took] for place in (0, 1))
        print(
            f"  {when}: {name}: p50 {median(wall):.2f} ms, p99 {quantiles(wall, n=100)[98]:.2f} ms; "
            f"CPU of the thread {median(cpu):.2f} and {quantiles(cpu, n=100)[98]:.2f} ms"
        )


class _Writer:
    def __init__(self, store: Store, layers: int) -> None:
        self.layers = layers
        self.batch = max(1, _BATCH_CELLS // layers)
        self._store = store
        self._id = secrets.token_hex(16)
        self._seq = 0
        self._answers: queue.Queue[wire.ServerMessage] = queue.Queue()
        rng = np.random.default_rng(1)
        self._fields = _fields(rng, self.batch, layers)
        identity = wire.Identity(run="run", writer=self._id, started_ns=1)
        operand = tuple(wire.Operand(kind=kind, format="bf16") for kind in _KINDS)
        table = tuple(
            wire.Layer(
                index=i, name=f"block.{i}.linear", module_type="Linear", order=i, parameters=10, operands=operand
            )
            for i in range(layers)
        )
        self._send(
            wire.Hello(
                protocol_min=1,
                protocol_max=1,
                agent="bench",
                identity=identity,
                wall_ns=1,
                monotonic_ns=0,
                layers=table,
            )
        )

    def deliver(self, first: int, steps: int) -> None:
        self._seq += 1
        parts = tuple(
            wire.Summaries(
                kind=kind,
                first_step=first,
                steps=steps,
                layers=np.arange(self.layers, dtype="<u4").tobytes(),
                fields=tuple(
                    wire.Field(name=name, dtype=FIELD_DTYPES[name], data=values[:steps].tobytes())
                    for name, values in self._fields.items()
                ),
            )
            for kind in _KINDS
        )
        self._send(wire.make_block(self._seq, wire.Body(first_step=first, steps=steps, summaries=parts)))

    def _send(self, message: wire.AgentMessage) -> None:
        self._store.submit(self._id, message, self._answers.put)
        answer = self._answers.get(timeout=60)
        assert isinstance(answer, wire.Welcome | wire.Ack), answer


class _Ingest(threading.Thread):
    def __init__(self, writer: _Writer, first: int) -> None:
        super().__init__(daemon=True)
        self.head = first
        # The same number of samples whatever the number of layers.
        self._pause = writer.batch / _STEPS_A_SECOND * writer.layers / 300
        self.samples_a_second = int(writer.batch / self._pause * writer.layers * len(_KINDS) * 8)
        self._writer = writer
        self._first = first
        self._done = threading.Event()
        self._begin = time.perf_counter()
        self._took = 0.0

    def run(self) -> None:
        due = self._begin = time.perf_counter()
        while not self._done.wait(max(0.0, due - time.perf_counter())):
            self._writer.deliver(self.head, self._writer.batch)
            self.head += self._writer.batch
            due += self._pause
        self._took = time.perf_counter() - self._begin

    def stop(self) -> None:
        self._done.set()
        self.join()

    def reached(self) -> float:
        return (self.head - self._first) / self._writer.batch * self._pause / self._took


def _fields(rng: np.random.Generator, steps: int, layers: int) -> dict[str, np.ndarray]:
    absmax = np.exp2(rng.normal(-3, 1, (steps, layers)))
    made = {
        "count": np.full((steps, layers), 4096),
        "zeros": rng.integers(0, 40, (steps, layers)),
        "nans": np.zeros((steps, layers)),
        "infs": np.zeros((steps, layers)),
        "absmax": absmax,
        "absmin": absmax * np.exp2(-rng.normal(20, 1, (steps, layers))),
        "sum": absmax * rng.normal(0, 40, (steps, layers)),
        "sumsq": absmax**2 * rng.lognormal(5, 0.3, (steps, layers)),
        "scale": np.full((steps, layers), 1.0),
        "under": rng.integers(0, 40, (steps, layers)) / 4096,
        "over_low": np.zeros((steps, layers)),
        "over_high": np.zeros((steps, layers)),
        "floor": rng.integers(0, 40, (steps, layers)) / 4096,
    }
    return {name: values.astype(FIELD_DTYPES[name]) for name, values in made.items()}


def _fill(session: Session, geometry: Geometry, layers: int, end: int) -> None:
    """Tiles of all steps before ``end``."""
    rng = np.random.default_rng(2)
    for stream in session.exec(select(Stream)).all():
        if not stream.name.startswith("layer/"):
            continue
        assert stream.id is not None
        for name in ("columns", "fan", "block", "keep_bits", "keep_bits_pooled"):
            setattr(stream, name, getattr(geometry, name))
        session.merge(StreamState(stream_id=stream.id, attempt=1, sealed=end, epoch=1))
        for block in range(-(-layers // geometry.block)):
            size = min(geometry.block, layers - block * geometry.block)
            _fill_block(session, geometry, stream, block, size, end, rng)


def _fill_block(
    session: Session, geometry: Geometry, stream: Stream, block: int, size: int, end: int, rng: np.random.Generator
) -> None:
    common = {"run_id": stream.run_id, "stream_id": stream.id, "attempt": 1, "block": block}

    def rows(planes: Planes, level: int) -> list[dict[str, object]]:
        made = encoded(planes, geometry, level=level, first_layer=0, first_column=0)
        return [{**common, **row._asdict()} for row in made]

    raw = []
    for _ in range(geometry.fan):
        fields = _fields(rng, geometry.columns, size)
        frame = Frame(first_step=0, steps=geometry.columns, layers=np.arange(size), fields=dict(fields))
        raw.append(raw_planes([(0, frame)], first=0, columns=geometry.columns, layers=size, ranks=1))
    of_raw = [rows(planes, 0) for planes in raw]
    tiles = end // geometry.columns
    session.execute(insert(TileRaw), [{**row, "idx": at} for at in range(tiles) for row in of_raw[at % geometry.fan]])
    parts = [pool(pooled_planes(planes), geometry.fan) for planes in raw]
    level = 1
    while tiles:
        full = tiles // geometry.fan
        of_parts = [rows(planes, level) for planes in parts]
        made = [
            {**row, "level": level, "part": 1, "idx": at}
            for at in range(full * geometry.fan, tiles)
            for row in of_parts[at % geometry.fan]
        ]
        whole = beside(parts, [geometry.part_columns] * geometry.fan, size)
        made += [{**row, "level": level, "part": 0, "idx": at} for at in range(full) for row in rows(whole, level)]
        if made:
            session.execute(insert(Tile), made)
        parts = [pool(whole, geometry.fan)] * geometry.fan
        tiles, level = full, level + 1


if __name__ == "__main__":
    main(((int(sys.argv[1]), int(sys.argv[2])),) if len(sys.argv) == 3 else _SIZES)
