"""A real WebSocket server that keeps what it acknowledges, can misbehave on request, and a TCP relay that cuts."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from floatscope import wire
from floatscope._conversation import Timing
from floatscope._flight import FlightRecorder
from floatscope._packer import DeviceSource
from floatscope._record import StepRecord, SummaryRows
from floatscope._sender import Limits, Sender
from floatscope._spool._spooler import SpoolPlace
from tests.agent.sender.spooling import WRITER

PATIENT = Limits(flush_s=60.0)
"""However slow the machine: a server that is there gets everything before ``close`` gives up."""
UNHURRIED = Timing(open_s=60.0)


@dataclass
class Pending:
    """A record whose numbers are there as soon as ``is_ready`` says so."""

    record: StepRecord
    nbytes: int = 1000
    is_ready: Callable[[], bool] = lambda: True

    @property
    def step(self) -> int:
        return self.record.step

    @property
    def layers(self) -> tuple[wire.Layer, ...]:
        return self.record.layers

    def ready(self) -> bool:
        return self.is_ready()

    def resolve(self) -> StepRecord:
        return self.record


@dataclass
class IngestDouble:
    """Speaks the server's side of protocol v1: keeps ``last_seq``, ignores what it has, answers holes."""

    last_seq: int = 0
    epoch: str = "e"
    credit: int = 8 << 20
    max_in_flight: int = 8
    ack_delay_s: float = 0.0
    heartbeat_s: float = 10.0
    max_block_bytes: int = wire.MAX_BLOCK_BYTES
    welcomes: bool = True
    protocol: int = wire.PROTOCOL
    acks: bool = True
    deaf: bool = False
    """Reads batches and does nothing with them."""
    refusal: wire.Refused | None = None
    judge: Callable[[wire.Block | wire.Gap], wire.Nack | None] = lambda batch: None
    """Asked before a batch is kept; a Nack is sent instead of keeping it."""

    kept: list[wire.Block | wire.Gap] = field(default_factory=list)
    seen: list[wire.AgentMessage] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    most_unanswered: int = 0
    most_unanswered_bytes: int = 0
    _server: Server | None = None
    _port: int = 0
    _open: set[ServerConnection] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = serve(
            self._serve,
            "127.0.0.1",
            self._port,
            compression=None,
            subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
            max_size=2 << 20,
            ping_interval=None,
            close_timeout=0.2,
        )
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Close the listener and cut every connection."""
        if self._server is not None:
            self._server.shutdown()
            self._server = None
        for connection in list(self._open):
            connection.socket.close()

    def _serve(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        try:
            self._converse(connection)
        except (ConnectionClosed, OSError):
            pass
        finally:
            self._open.discard(connection)

    def _converse(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.paths.append(connection.request.path)
        self.headers.append(dict(connection.request.headers.raw_items()))
        self._note(connection.recv())
        if self.refusal is not None:
            connection.send(wire.encode(self.refusal))
            return
        if not self.welcomes:
            connection.recv()
        connection.send(
            wire.encode(
                wire.Welcome(
                    protocol=self.protocol,
                    epoch=self.epoch,
                    last_seq=self.last_seq,
                    attempt=1,
                    credit=self.credit,
                    wall_ns=time.time_ns(),
                    heartbeat_s=self.heartbeat_s,
                    max_in_flight=self.max_in_flight,
                    max_block_bytes=self.max_block_bytes,
                )
            )
        )
        due: list[tuple[float, int, int]] = []
        while True:
            timeout = max(0.0, due[0][0] - time.monotonic()) if due else None
            try:
                message = self._note(connection.recv(timeout=timeout))
            except TimeoutError:
                _, seq, _ = due.pop(0)
                connection.send(wire.encode(wire.Ack(seq=seq, credit=self.credit)))
                continue
            if self.deaf or not isinstance(message, wire.Block | wire.Gap):
                continue
            if (nack := self._keep(message)) is not None:
                connection.send(wire.encode(nack))
            elif self.acks:
                due.append((time.monotonic() + self.ack_delay_s, message.seq, len(wire.encode(message))))
            self.most_unanswered = max(self.most_unanswered, len(due))
            self.most_unanswered_bytes = max(self.most_unanswered_bytes, sum(size for _, _, size in due))

    def say(self, message: wire.ServerMessage) -> None:
        """Say ``message`` to every agent that is connected."""
        for connection in list(self._open):
            connection.send(wire.encode(message))

    def _note(self, data: str | bytes) -> wire.AgentMessage:
        assert isinstance(data, bytes)
        assert len(data) <= wire.MAX_BLOCK_BYTES
        message = wire.decode_agent(data)
        self.seen.append(message)
        return message

    def _keep(self, batch: wire.Block | wire.Gap) -> wire.Nack | None:
        if batch.seq <= self.last_seq:
            return None
        if batch.seq > self.last_seq + 1:
            return wire.Nack(seq=batch.seq, code="hole", message="a hole", expected=self.last_seq + 1, retryable=True)
        if (nack := self.judge(batch)) is None:
            self.kept.append(batch)
            self.last_seq = batch.seq
        return nack

    def bodies(self) -> list[wire.Body]:
        return [wire.decode_body(block) for block in self.kept if isinstance(block, wire.Block)]

    def steps(self) -> list[int]:
        """The steps of the series "loss", in the order kept."""
        return [
            int(step)
            for body in self.bodies()
            for series in body.scalars
            if series.name == "loss"
            for step in np.frombuffer(series.steps, "<i8")
        ]

    def layers(self) -> dict[int, str]:
        """The names announced in a greeting or in a batch."""
        greeted = [layer for message in self.seen if isinstance(message, wire.Hello) for layer in message.layers]
        return {layer.index: layer.name for layer in (*greeted, *(x for body in self.bodies() for x in body.layers))}

    def gaps(self) -> list[wire.Gap]:
        return [batch for batch in self.kept if isinstance(batch, wire.Gap)]


class CuttingRelay:
    """Forwards to a server and resets the connection after ``cut_at`` bytes from the client, once per entry."""

    def __init__(self, server: IngestDouble, cut_at: list[int]) -> None:
        self._server = server
        self._cut_at = cut_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(("127.0.0.1", int(self._server.url.rsplit(":", 1)[1])))
            budget = self._cut_at.pop(0) if self._cut_at else None
            threading.Thread(target=self._pump, args=(client, upstream, budget), daemon=True).start()
            threading.Thread(target=self._pump, args=(upstream, client, None), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, budget: int | None) -> None:
        try:
            while data := source.recv(65536):
                if budget is not None and len(data) >= budget:
                    sink.sendall(data[:budget])
                    self.cuts += 1
                    # Linger 0 makes close a reset.
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                budget = None if budget is None else budget - len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[IngestDouble]:
    double = IngestDouble()
    double.start()
    yield double
    double.stop()


@pytest.fixture
def relay(server: IngestDouble) -> Iterator[Callable[[list[int]], CuttingRelay]]:
    relays: list[CuttingRelay] = []

    def make(cut_at: list[int]) -> CuttingRelay:
        relays.append(CuttingRelay(server, cut_at))
        return relays[-1]

    yield make
    for each in relays:
        each.close()


@pytest.fixture
def step() -> Callable[..., Pending]:
    """``step(n, rows=0, hist=False)``: a record of step n with a loss and, if wanted, gradient rows."""

    def make(n: int, *, rows: int = 0, hist: bool = False, nbytes: int = 1000, **more: object) -> Pending:
        summaries = (_rows(n, rows, hist=hist),) if rows else ()
        record = StepRecord(step=n, scalars={"loss": n / 8}, summaries=summaries, **more)  # type: ignore[arg-type]
        return Pending(record, nbytes)

    return make


def _rows(n: int, count: int, *, hist: bool) -> SummaryRows:
    rng = np.random.default_rng(n)
    # Like a gradient's: some thirty occupied half octaves in a row, a few of them empty.
    counts = np.zeros((count, 512), np.int64)
    counts[:, 220:250] = rng.integers(0, 50, (count, 30))
    return SummaryRows(
        kind="grad",
        layers=np.arange(count, dtype=np.uint32),
        fields={
            "count": np.full(count, 4096, np.int64),
            "nans": np.zeros(count, np.int64),
            "infs": np.zeros(count, np.int64),
            "absmax": rng.random(count, dtype=np.float32),
            "sumsq": rng.random(count),
        },
        hist=counts if hist else None,
    )


@pytest.fixture
def sender_to() -> Iterator[Callable[..., Sender]]:
    """A sender with short delays between attempts, and patience. At the end none may have swallowed an error of its
    own."""
    senders: list[Sender] = []

    def make(
        url: str,
        *,
        limits: Limits | None = None,
        timing: Timing | None = None,
        token: str | None = None,
        devices: DeviceSource | None = None,
        flight: FlightRecorder | None = None,
    ) -> Sender:
        def delays() -> Iterator[float]:
            while True:
                yield 0.02

        senders.append(
            Sender(
                wire.Identity(run="r", writer="0" * 32),
                url,
                token,
                {"batch": 8},
                limits=limits or PATIENT,
                timing=timing or UNHURRIED,
                delays=delays,
                devices=devices,
                flight=flight,
            )
        )
        return senders[-1]

    yield make
    for sender in senders:
        sender.abandon()
        sender.close("test over")
        assert "internal error" not in (sender.stats().failure or "")


@pytest.fixture
def place(tmp_path: Path) -> SpoolPlace:
    return SpoolPlace(directory=tmp_path / "spool")


@pytest.fixture
def spooling() -> Iterator[Callable[..., Sender]]:
    """Senders that spool; at the end none may have swallowed an error of its own."""
    senders: list[Sender] = []

    def delays() -> Iterator[float]:
        while True:
            yield 0.02

    def make(url: str, place: SpoolPlace, *, writer: str = WRITER, run: str = "r", **options: Any) -> Sender:  # noqa: ANN401
        identity = wire.Identity(run=run, writer=writer)
        options.setdefault("limits", PATIENT)
        options.setdefault("timing", UNHURRIED)
        senders.append(Sender(identity, url, spool=place, delays=delays, **options))
        return senders[-1]

    yield make
    for sender in senders:
        sender.abandon()
        sender.close("test over")
        assert "internal error" not in (sender.stats().failure or "")
        assert sender.stats().spool_off != "internal"
