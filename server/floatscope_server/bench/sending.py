"""The agent's side: blocks that go out with eight in flight, and how long each waited for its acknowledgement."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from contextlib import ExitStack
from typing import Protocol

from websockets.sync.client import connect
from websockets.typing import Subprotocol

from floatscope import wire
from floatscope_server.bench.data import Synthetic
from floatscope_server.store import Store

__all__ = ["BenchError", "Line", "Paced", "Sender", "StoreLine", "WebSocketLine"]

_PATIENCE_S = 120.0


class BenchError(Exception):
    """The bench cannot go on; the text says why."""


class Line(Protocol):
    """Where messages go, and answers come from."""

    def send(self, writer: str, message: wire.AgentMessage) -> None: ...

    def receive(self, timeout_s: float) -> tuple[float, wire.ServerMessage] | None:
        """The next answer and when it came, by ``time.perf_counter``; None if none does in time."""

    def close(self) -> None: ...


class StoreLine:
    """A store in this process, by ``Store.submit``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers: queue.Queue[tuple[float, wire.ServerMessage]] = queue.Queue()

    def send(self, writer: str, message: wire.AgentMessage) -> None:
        self._store.submit(writer, message, lambda answer: self._answers.put((time.perf_counter(), answer)))

    def receive(self, timeout_s: float) -> tuple[float, wire.ServerMessage] | None:
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        pass


class WebSocketLine:
    """A server at ``url``, as an agent speaks to it."""

    def __init__(self, url: str) -> None:
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(
            connect(
                url.replace("http", "ws", 1) + "/ingest/v1",
                subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
                compression=None,
                max_size=None,
            )
        )

    def send(self, writer: str, message: wire.AgentMessage) -> None:
        self._socket.send(wire.encode(message))

    def receive(self, timeout_s: float) -> tuple[float, wire.ServerMessage] | None:
        try:
            data = self._socket.recv(timeout=timeout_s)
        except TimeoutError:
            return None
        assert isinstance(data, bytes)
        return time.perf_counter(), wire.decode_server(data)

    def close(self) -> None:
        self._stack.close()


class Sender:
    """One writer of ``run``. ``waits`` are the seconds from a block's sending to its acknowledgement."""

    def __init__(self, line: Line, data: Synthetic, run: str, *, first: int = 0) -> None:
        self.data = data
        self.head = first
        self.waits: list[float] = []
        self._line = line
        self._writer = secrets.token_hex(16)
        self._seq = 0
        self._sent: dict[int, float] = {}
        line.send(self._writer, data.hello(run, self._writer))
        answer = line.receive(_PATIENCE_S)
        if answer is None or not isinstance(answer[1], wire.Welcome):
            raise BenchError(f"the server refuses the bench: {answer and answer[1]}")

    def send(self, steps: int) -> None:
        """The next ``steps`` steps; waits while eight blocks are on their way."""
        while len(self._sent) >= wire.MAX_IN_FLIGHT:
            self._wait_for_one()
        self._seq += 1
        block = wire.make_block(self._seq, self.data.body(self.head, steps))
        self._sent[self._seq] = time.perf_counter()
        self._line.send(self._writer, block)
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
        self._line.send(self._writer, wire.Bye(seq=self._seq, reason="finished"))
        self._line.close()

    def _wait_for_one(self) -> None:
        if not self._take(_PATIENCE_S):
            raise BenchError(f"nothing has been acknowledged for {_PATIENCE_S:.0f} s")

    def _take(self, timeout_s: float) -> bool:
        answer = self._line.receive(timeout_s)
        if answer is None:
            return False
        at, message = answer
        if isinstance(message, wire.Ack):
            for seq in [seq for seq in self._sent if seq <= message.seq]:
                self.waits.append(at - self._sent.pop(seq))
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
