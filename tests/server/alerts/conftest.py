"""Builders of blocks, and the parts of a server that alerts need."""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.alerts import connect
from floatscope_server.observation import Observation
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from tests.databases import TestDatabase
from tests.server.alerts.outboxes import Bench

if TYPE_CHECKING:
    from tests.server.conftest import Reply, Running

Shares = Mapping[int, float]
Call = Callable[..., "Reply"]


class Build:
    """Makes layers and bodies in few words."""

    def layers(self, *names: str, operands: Sequence[wire.Operand] = (), parameters: int = 10) -> dict[int, wire.Layer]:
        """Layers in execution order, each with the same operands."""
        return {
            i: wire.Layer(
                index=i, name=name, module_type="Linear", parameters=parameters, order=i, operands=tuple(operands)
            )
            for i, name in enumerate(names)
        }

    def summary(
        self,
        kind: str,
        step: int,
        layers: int,
        *,
        steps: int = 1,
        amax: float | Sequence[Any] = 1.0,
        scale: float | Sequence[Any] = 1.0,
        nans: Shares | None = None,
        infs: Shares | None = None,
        zeros: float = 0.0,
        under: float | Sequence[Any] | None = None,
        floor: float | Sequence[Any] | None = None,
        rms: float | Sequence[Any] | None = None,
    ) -> wire.Summaries:
        """A block of ``steps`` steps over layers 0.. with the given numbers of bad elements by layer."""
        shape = (steps, layers)

        def spread(value: Any, dtype: str) -> bytes:  # noqa: ANN401
            return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), shape)).tobytes()

        def counts(found: Shares | None) -> bytes:
            array = np.zeros(shape, "<i8")
            for layer, count in (found or {}).items():
                array[:, layer] = count
            return array.tobytes()

        fields = [
            wire.Field(name="count", dtype="<i8", data=spread(1000, "<i8")),
            wire.Field(name="zeros", dtype="<i8", data=spread(1000 * zeros, "<i8")),
            wire.Field(name="nans", dtype="<i8", data=counts(nans)),
            wire.Field(name="infs", dtype="<i8", data=counts(infs)),
            wire.Field(name="absmax", dtype="<f4", data=spread(amax, "<f4")),
            wire.Field(name="scale", dtype="<f4", data=spread(scale, "<f4")),
        ]
        if under is not None:
            fields.append(wire.Field(name="under", dtype="<f4", data=spread(under, "<f4")))
        if rms is not None:
            fields.append(wire.Field(name="sumsq", dtype="<f8", data=spread(1000 * np.square(rms), "<f8")))
        if floor is not None:
            fields.append(wire.Field(name="floor", dtype="<f4", data=spread(floor, "<f4")))
        indices = np.arange(layers, dtype="<u4").tobytes()
        return wire.Summaries(kind=kind, first_step=step, steps=steps, layers=indices, fields=tuple(fields))

    def scalars(self, records: Mapping[int, Mapping[str, float]]) -> tuple[wire.Scalars, ...]:
        """Series from records by step."""
        series: dict[str, list[tuple[int, float]]] = {}
        for step, values in records.items():
            for name, value in values.items():
                series.setdefault(name, []).append((step, value))
        return tuple(
            wire.Scalars(
                name=name,
                steps=np.array([step for step, _ in points], "<i8").tobytes(),
                values=np.array([value for _, value in points], "<f8").tobytes(),
            )
            for name, points in series.items()
        )

    def body(
        self,
        *summaries: wire.Summaries,
        records: Mapping[int, Mapping[str, float]] | None = None,
        events: Sequence[wire.Event] = (),
    ) -> wire.Body:
        """A body that spans what is in it."""
        records = records or {}
        steps = [*records, *(s.first_step for s in summaries), *(s.first_step + s.steps - 1 for s in summaries)]
        steps += [e.step for e in events]
        return wire.Body(
            first_step=min(steps),
            steps=max(steps) - min(steps) + 1,
            summaries=tuple(summaries),
            scalars=self.scalars(records),
            events=tuple(events),
        )

    def observation(
        self,
        body: wire.Body,
        *,
        layers: Mapping[int, wire.Layer] | None = None,
        rank: int = 0,
        world: int = 1,
        seq: int = 1,
    ) -> Observation:
        """What the rules get."""
        return Observation(
            run_id=1,
            run="run",
            attempt=1,
            rank=rank,
            writer=f"w{rank}",
            seq=seq,
            world=world,
            body=body,
            layers=dict(layers or {}),
        )


@pytest.fixture
def build() -> Build:
    return Build()


class Feed:
    """Agents without a network: hands hellos and blocks to a store and waits until they are on disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seqs: dict[str, int] = {}

    def _ask(self, writer: str, message: wire.AgentMessage) -> wire.ServerMessage:
        answers: queue.SimpleQueue[wire.ServerMessage | None] = queue.SimpleQueue()
        self._store.submit(writer, message, answers.put)
        answer = answers.get(timeout=60)
        assert answer is not None
        return answer

    def hello(
        self,
        *,
        run: str,
        rank: int = 0,
        world: int = 1,
        attempt: int = 0,
        layers: Mapping[int, wire.Layer] | None = None,
    ) -> str:
        """A new writer."""
        writer = uuid.uuid4().hex
        identity = wire.Identity(run=run, writer=writer, rank=rank, world=world, attempt=attempt)
        answer = self._ask(
            writer,
            wire.Hello(
                protocol_min=1,
                protocol_max=1,
                agent="test",
                identity=identity,
                wall_ns=time.time_ns(),
                monotonic_ns=time.monotonic_ns(),
                layers=tuple((layers or {}).values()),
            ),
        )
        assert isinstance(answer, wire.Welcome), answer
        self._seqs[writer] = answer.last_seq
        return writer

    def resume(self, writer: str, seq: int) -> str:
        """A writer that has sent ``seq`` blocks before the server went down."""
        identity = wire.Identity(run="run", writer=writer)
        answer = self._ask(
            writer,
            wire.Hello(
                protocol_min=1, protocol_max=1, agent="test", identity=identity, wall_ns=time.time_ns(), monotonic_ns=0
            ),
        )
        assert isinstance(answer, wire.Welcome), answer
        assert answer.last_seq == seq
        self._seqs[writer] = seq
        return writer

    def put(self, writer: str, body: wire.Body) -> None:
        """The writer's next block."""
        self._seqs[writer] += 1
        answer = self._ask(writer, wire.make_block(self._seqs[writer], body))
        assert isinstance(answer, wire.Ack), answer

    def gap(self, writer: str, *, first: int, last: int, count: int, reason: str) -> None:
        """Records that the writer lost, as its next batch."""
        self._seqs[writer] += 1
        gap = wire.Gap(seq=self._seqs[writer], first=first, last=last, count=count, reason=reason)
        answer = self._ask(writer, gap)
        assert isinstance(answer, wire.Ack), answer

    def bye(self, writer: str) -> None:
        """The training has ended."""
        self._ask(writer, wire.Bye(seq=self._seqs[writer], reason="finished"))


@pytest.fixture
def settings(tmp_path: Path, database: TestDatabase) -> Settings:
    return Settings(**database.of(tmp_path / "data"), webhook_allow=("127.0.0.1",), commit_interval_s=0.001)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    real = Store(settings)
    real.start()
    yield real
    real.stop()


@pytest.fixture
def feed(store: Store) -> Feed:
    return Feed(store)


@dataclass
class Screen:
    """A live hub that remembers what viewers were told."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    def publish(self, run: str, message: dict[str, Any]) -> None:
        assert message["run"] == run
        self.messages.append(message)


@pytest.fixture
def live() -> Screen:
    return Screen()


@dataclass(slots=True)
class Got:
    """A request that a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A real HTTP server in a thread; ``answer`` decides on each request: (status, headers), perhaps a body too.
    ``port`` 0 chooses one that is free."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Got] = []
        self.answer: Callable[[Got], tuple[int, dict[str, str]] | tuple[int, dict[str, str], bytes]] = lambda _: (
            204,
            {},
        )
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got = Got(self.path, dict(self.headers), self.rfile.read(int(self.headers["content-length"])))
                receiver.requests.append(got)
                status, headers, *rest = receiver.answer(got)
                body = rest[0] if rest else b""
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


@pytest.fixture
def bench(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A receiver on a busy machine is no slow one: nothing is given up but where a test says so."""
    for limit in ("_CONNECT_S", "_WRITE_S", "_READ_S", "_POOL_S", "_TOTAL_S"):
        monkeypatch.setattr(connect, limit, 60.0)
    return Bench(store, settings)


@pytest.fixture
def call(server: Running, http: Call) -> Call:
    """Asks the ``server`` fixture: (method, path, body)."""

    def ask(method: str, path: str, body: Any = None) -> Reply:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        return http(server.url + path, method=method, body=data, headers={"content-type": "application/json"})

    return ask


@pytest.fixture
def wait() -> Callable[[Callable[[], bool]], None]:
    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return until
