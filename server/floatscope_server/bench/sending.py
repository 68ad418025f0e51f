"""The agent's side: blocks that go out with eight in flight, and how long each waited for its acknowledgement."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from floatscope import wire
from floatscope_server.bench.data import Synthetic
from floatscope_server.store import Store

__all__ = ["Answer", "BenchError", "Line", "Paced", "Sender", "StoreLine", "WebSocketLine"]

_PATIENCE_S = 120.0


class BenchError(Exception):
    """The bench cannot go on; the text says why."""


class Answer(NamedTuple):
    """What came for ``writer``, and when, by ``time.perf_counter``."""

    at: float
    writer: str
    message: wire.ServerMessage


class Line(Protocol):
    """Where messages go, and answers come from."""

    def send(self, writer: str, message: wire.AgentMessage) -> None: ...

    def receive(self, timeout_s: float) -> Answer | None:
        """The next answer to any writer; None if none comes in time."""

    def close(self) -> None: ...


class StoreLine:
    """A store in this process, by ``Store.submit``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers: queue.Queue[Answer] = queue.Queue()

    def send(self, writer: str, message: wire.AgentMessage) -> None:
        self._store.submit(
            writer, message, lambda answer: self._answers.put(Answer(time.perf_counter(), writer, answer))
        )

    def receive(self, timeout_s: float) -> Answer | None:
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        pass


class WebSocketLine:
    """A server at ``url``, as agents speak to it: a connection for each writer."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("http", "ws", 1) + "/ingest/v1"
        self._stack = ExitStack()
        self._sockets: dict[str, ClientConnection] = {}
        self._readers: list[threading.Thread] = []
        self._answers: queue.Queue[Answer | ConnectionClosed] = queue.Queue()

    def send(self, writer: str, message: wire.AgentMessage) -> None:
        if writer not in self._sockets:
            protocol = Subprotocol(wire.SUBPROTOCOL)
            socket = self._sockets[writer] = self._stack.enter_context(
                connect(self._url, subprotocols=[protocol], compression=None, max_size=None)
            )
            reader = threading.Thread(target=self._listen, args=(writer, socket), name="floatscope-bench-acks")
            self._readers.append(reader)
            reader.start()
        self._sockets[writer].send(wire.encode(message))

    def receive(self, timeout_s: float) -> Answer | None:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(answer, ConnectionClosed):
            raise BenchError(f"the server has closed a connection: {answer}")
        return answer

    def close(self) -> None:
        self._stack.close()
        for reader in self._readers:
            reader.join()

    def _listen(self, writer: str, socket: ClientConnection) -> None:
        try:
            while True:
                data = socket.recv()
                assert isinstance(data, bytes)
                self._answers.put(Answer(time.perf_counter(), writer, wire.decode_server(data)))
        except ConnectionClosed as error:
            self._answers.put(error)


class Sender:
    """All ranks of ``run``, a writer each. ``waits`` are the seconds from a block's sending to its acknowledgement."""

    def __init__(self, line: Line, data: Synthetic, run: str, *, first: int = 0) -> None:
        self.data = data
        self.head = first
        self.waits: list[float] = []
        self._line = line
        self._writers = [secrets.token_hex(16) for _ in range(data.ranks)]
        self._seq = 0
        self._sent: dict[tuple[str, int], float] = {}
        self._in_flight = dict.fromkeys(self._writers, 0)
        for rank, writer in enumerate(self._writers):
            line.send(writer, data.hello(run, writer, rank))
            answer = line.receive(_PATIENCE_S)
            if answer is None or not isinstance(answer.message, wire.Welcome):
                raise BenchError(f"the server refuses the bench: {answer and answer.message}")

    def send(self, steps: int) -> None:
        """The next ``steps`` steps of each rank; waits while eight of its blocks are on their way."""
        self._seq += 1
        for rank, writer in enumerate(self._writers):
            while self._in_flight[writer] >= wire.MAX_IN_FLIGHT:
                self._wait_for_one()
            block = wire.make_block(self._seq, self.data.body(self.head, steps, rank))
            self._sent[writer, self._seq] = time.perf_counter()
            self._in_flight[writer] += 1
            self._line.send(writer, block)
        self.head += steps

    def listen(self, until: float) -> None:
        """Take what is acknowledged until then, by ``time.perf_counter``."""
        while (left := until - time.perf_counter()) > 0:
            self._take(left)

    def wait(self) -> None:
        """Until all is acknowledged."""
        while self._sent:
            self._wait_for_one()

    def end(self) -> None:
        """Say goodbye: the run is finished."""
        self.wait()
        for writer in self._writers:
            self._line.send(writer, wire.Bye(seq=self._seq, reason="finished"))
        self._line.close()

    def _wait_for_one(self) -> None:
        if not self._take(_PATIENCE_S):
            raise BenchError(f"nothing has been acknowledged for {_PATIENCE_S:.0f} s")

    def _take(self, timeout_s: float) -> bool:
        answer = self._line.receive(timeout_s)
        if answer is None:
            return False
        message = answer.message
        if isinstance(message, wire.Ack):
            for key in [key for key in self._sent if key[0] == answer.writer and key[1] <= message.seq]:
                self.waits.append(answer.at - self._sent.pop(key))
                self._in_flight[answer.writer] -= 1
        elif isinstance(message, wire.Nack | wire.Refused):
            raise BenchError(f"the server took no block: {message.message}")
        return True


class Paced(threading.Thread):
    """Sends ``batch`` steps every ``interval`` seconds until it is stopped, as a training does."""

    def __init__(self, sender: Sender, *, batch: int, interval: float) -> None:
        super().__init__(name="floatscope-bench-ingest", daemon=True)
        self.error: Exception | None = None
        self._sender = sender
        self._batch = batch
        self._interval = interval
        self._ended = threading.Event()
        self._blocks = 0
        self._began = self._over = 0.0

    @property
    def head(self) -> int:
        """Steps sent."""
        return self._sender.head

    def run(self) -> None:
        due = self._began = time.perf_counter()
        try:
            while not self._ended.is_set():
                self._sender.listen(due)
                self._sender.send(self._batch)
                self._blocks += 1
                due += self._interval
            self._sender.wait()
        except BenchError as error:
            self.error = error
        self._over = time.perf_counter()

    def stop(self) -> float:
        """End, and say which share of its pace was kept; ``BenchError`` if it broke off."""
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error
        return min(1.0, self._blocks * self._interval / max(self._over - self._began, self._interval))
