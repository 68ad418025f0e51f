"""A TCP relay between an agent and its server that behaves badly on request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit

__all__ = ["FaultProxy"]

_RESET = struct.pack("ii", 1, 0)
_LISTEN_BACKLOG = 16


@dataclass
class FaultProxy:
    """Forwards to ``upstream`` (http://HOST:PORT), except as ``fault`` says for what arrives from then on.

    "" forwards, "refuse" resets a new connection at once, "blackhole" takes bytes and answers nothing, "trickle" lets
    one byte through in a second, "reset" cuts when the next byte comes, "truncate" forwards ``at`` bytes from the
    client and then cuts, "flip" inverts the bits of the client's byte ``at``, "half-close" ends the client's direction
    at the next byte and keeps the other open.
    """

    upstream: str
    fault: str = ""
    at: int = 0
    faults: int = 0
    """How often one took place."""
    _listener: socket.socket = field(init=False)
    _ends: set[socket.socket] = field(init=False, default_factory=set)
    _closed: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_LISTEN_BACKLOG)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Address for the agent."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Cut every connection."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._ends):
            self._cut(end)

    def cut_all(self) -> None:
        """Reset what is connected now."""
        for end in list(self._ends):
            self._cut(end)

    def _accept(self) -> None:
        where = urlsplit(self.upstream)
        assert where.hostname is not None
        assert where.port is not None
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.fault == "refuse":
                self.faults += 1
                self._cut(client)
                continue
            try:
                server = socket.create_connection((where.hostname, where.port))
            except OSError:
                self._cut(client)
                continue
            self._ends |= {client, server}
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _cut(self, end: socket.socket) -> None:
        self._ends.discard(end)
        with contextlib.suppress(OSError):
            # Linger 0 makes close a reset; the shutdown wakes whoever reads.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.shutdown(socket.SHUT_RDWR)
        end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                if self.fault == "blackhole":
                    self.faults += 1
                    continue
                if self.fault == "trickle":
                    self._trickle(data, sink)
                elif upwards and not self._passes(data, passed, sink):
                    break
                elif not upwards:
                    sink.sendall(data)
                passed += len(data)
        except OSError:
            pass
        self._cut(source)
        self._cut(sink)

    def _trickle(self, data: bytes, sink: socket.socket) -> None:
        self.faults += 1
        for place in range(len(data)):
            if self.fault == "trickle" and self._closed.wait(1.0):
                return
            sink.sendall(data[place : place + 1])

    def _passes(self, data: bytes, passed: int, sink: socket.socket) -> bool:
        """Send on what the fault lets through; False when the connection is to be cut."""
        place = self.at - passed
        match self.fault:
            case "reset":
                self.faults += 1
                return False
            case "half-close":
                self.faults += 1
                self.fault = ""
                sink.shutdown(socket.SHUT_WR)
                return True
            case "truncate" if place < len(data):
                self.faults += 1
                sink.sendall(data[: max(0, place)])
                return False
            case "flip" if 0 <= place < len(data):
                self.faults += 1
                data = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        sink.sendall(data)
        return True
