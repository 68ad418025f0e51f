"""Connecting to the server: address, hello and welcome, back-off, and what the user is told about it."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from floatscope import wire
from floatscope._address import ingest_url, why_no_token
from floatscope._conversation import Conversation, Duties, Timing
from floatscope._log import counted, logger
from floatscope._outbox import Outgoing

__all__ = ["Link", "Peer", "backoff_delays", "one_line"]


# What the library says of a server that misbehaves would be a foreign traceback in the user's terminal.
_silent = logging.getLogger("floatscope.websockets")
_silent.disabled = True

_SMALLEST_BLOCK = 64 << 10
"""Least that a server may ask for as its largest block: below it a step does not fit, and every one would be lost."""


def one_line(text: str, longest: int = 300) -> str:
    """What a server says, fit for a terminal: one line of at most ``longest`` printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * longest]).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def backoff_delays(rng: random.Random, *, shortest_s: float = 0.25, longest_s: float = 15.0) -> Iterator[float]:
    """Seconds before each new attempt: uniform below a ceiling that doubles ("full jitter").

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    ceiling = shortest_s
    while True:
        yield rng.uniform(0.0, ceiling)
        ceiling = min(longest_s, ceiling * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Where to connect and who says hello there."""

    server_url: str
    token: str | None
    identity: wire.Identity
    agent: str
    config: dict[str, Any]
    gone: bool = False
    """It has ended, and left what is sent."""
    sender: str = ""
    """As in ``wire.Hello``."""


class Link:
    """Keeps a connection to ``peer`` while there is something to say. ``run`` is the body of one thread."""

    def __init__(
        self,
        peer: Peer,
        outbox: Outgoing,
        duties: Duties,
        *,
        pause: Callable[[float], None],
        delays: Callable[[], Iterator[float]],
        timing: Timing,
        quiet: bool = False,
        welcomed: Callable[[wire.Welcome], None] = lambda welcome: None,
    ) -> None:
        """``quiet`` keeps what happens from the user's terminal; ``welcomed`` hears each welcome."""
        self._peer = peer
        self._quiet = quiet
        self._welcomed = welcomed
        self.trouble = ""
        self._url = ingest_url(peer.server_url)
        self._identity = peer.identity
        self._outbox = outbox
        self._duties = duties
        self._pause = pause
        self._delays = delays
        self._timing = timing
        self._connection: ClientConnection | None = None
        self._unreachable = False
        self._stored = self._lost = 0
        self._stored_at = timing.clock()
        self._stall_told = False
        self._epoch: str | None = None
        self.connections = 0
        self.said_goodbye = False
        self.max_block_bytes = wire.MAX_BLOCK_BYTES

    def run(self) -> wire.Refused | None:
        """Talk until all is said or the duties end (None), or until the server refuses for good (its answer)."""
        delays = self._delays()
        while not self._duties.aborted():
            before = self._outbox.counts().acknowledged
            end = self._attempt()
            self._notice_stall()
            if isinstance(end, wire.Refused) and not end.retryable:
                return end
            if isinstance(end, wire.Bye):
                self.said_goodbye = True
                return None
            if self._unreachable and self._duties.farewell() is not None and self._outbox.empty():
                return None
            # A server that accepts connections and takes nothing is not back yet.
            if self._outbox.counts().acknowledged > before:
                delays = self._delays()
            self._pause(next(delays))
        return None

    def _notice_stall(self) -> None:
        """Tell once, while there is time to act, that a server which can be reached stores nothing."""
        now, counts = self._timing.clock(), self._outbox.counts()
        lost = sum(counts.lost.values())
        if counts.acknowledged != self._stored or (not counts.waiting and lost == self._lost):
            self._stored, self._stored_at, self._lost = counts.acknowledged, now, lost
        if self._stall_told or self._unreachable or self._quiet or now - self._stored_at < self._timing.stall_s:
            return
        self._stall_told = True
        logger.warning(
            "the Floatscope server at %s can be reached but has stored nothing for %d s: %s, "
            "%s lost. Training goes on. Look at what the server logs and at its disk, or restart it; if another "
            "program answers at that address, correct it. This is said once.",
            self._peer.server_url,
            now - self._stored_at,
            counted(counts.waiting, "record waits", "records wait"),
            counted(lost, "is", "are"),
        )

    def _attempt(self) -> wire.Refused | wire.Bye | None:
        welcomed = False
        if self._peer.token and (wrong := why_no_token(self._peer.token)):
            # The library would say the token in its error, which goes to a log.
            return wire.Refused(
                code="unauthorized",
                message=f"the token is none: {wrong}",
                hint="put a token that may ingest into FLOATSCOPE_TOKEN",
            )
        try:
            with self._connect() as connection:
                self._connection = connection
                welcome = self._greet(connection)
                if isinstance(welcome, wire.Refused):
                    if welcome.retryable:
                        self._warn(f"it refused: {welcome.message} ({welcome.hint})")
                    return welcome
                welcomed = True
                self._reached(welcome)
                return Conversation(
                    connection, welcome, self._outbox, self._duties, self._timing, turn=self._notice_stall
                ).run()
        except InvalidStatus as error:
            status = error.response.status_code
            if status in (401, 403):
                return wire.Refused(
                    code="unauthorized",
                    message=f"it answered HTTP {status} to this token",
                    hint="put a token that may ingest into FLOATSCOPE_TOKEN",
                )
            self._warn(f"it answered HTTP {status}")
        except (OSError, WebSocketException, wire.WireError, RuntimeError) as error:
            # A connection that worked and broke is tried again in silence; one that cannot be had is news.
            # RuntimeError: each connection needs a thread, and the process may be at its limit or (from Python 3.12
            # on) in its exit functions.
            if not welcomed:
                self._warn(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        finally:
            self._connection = None
        return None

    def forget_socket(self) -> None:
        """In a forked child: close the inherited descriptor, so that the server sees when the parent ends."""
        if self._connection is not None:
            self._connection.socket.close()

    def _connect(self) -> ClientConnection:
        local = urlsplit(self._url).hostname in ("127.0.0.1", "::1", "localhost")
        connection = connect(
            self._url,
            subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
            compression=None,
            additional_headers={"Authorization": f"Bearer {self._peer.token}"} if self._peer.token else None,
            proxy=None if local else True,
            open_timeout=self._timing.open_s,
            # The protocol has beats of its own; this saves a thread.
            ping_interval=None,
            close_timeout=1.0,
            logger=_silent,
        )
        # Without it a peer that stops reading blocks a send for a quarter of an hour.
        timeout_ms = int(1000 * self._timing.silence_s)
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        return connection

    def _greet(self, connection: ClientConnection) -> wire.Welcome | wire.Refused:
        hello = wire.Hello(
            protocol_min=wire.PROTOCOL_MIN,
            protocol_max=wire.PROTOCOL,
            agent=self._peer.agent,
            identity=self._identity,
            wall_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            layers=self._outbox.layers,
            config=self._peer.config,
            gone=self._peer.gone,
            sender=self._peer.sender,
        )
        data = wire.encode(hello)
        if len(data) > wire.MAX_BLOCK_BYTES:
            data = wire.encode(msgspec.structs.replace(hello, layers=()))
        connection.send(data)
        message = connection.recv(timeout=self._timing.open_s)
        answer = wire.decode_server(message if isinstance(message, bytes) else message.encode())
        if isinstance(answer, wire.Refused):
            return answer
        if not isinstance(answer, wire.Welcome):
            raise wire.WireError(f"expected a welcome, got {type(answer).__name__.lower()}")
        if not wire.PROTOCOL_MIN <= answer.protocol <= wire.PROTOCOL:
            return wire.Refused(
                code="protocol",
                message=f"it speaks protocol {answer.protocol}, this agent {wire.PROTOCOL_MIN} to {wire.PROTOCOL}",
                hint="install agent and server of neighbouring versions",
            )
        return answer

    def _reached(self, welcome: wire.Welcome) -> None:
        self.connections += 1
        self.max_block_bytes = min(wire.MAX_BLOCK_BYTES, max(_SMALLEST_BLOCK, welcome.max_block_bytes))
        self._identity = msgspec.structs.replace(self._identity, attempt=welcome.attempt)
        self._welcomed(welcome)
        if self.connections == 1 and self._identity.rank == 0 and not self._quiet:
            self._tell_where()
        if self._epoch not in (None, welcome.epoch) and not self._quiet:
            # The outbox needs no more than ``last_seq`` to send again what it has and to declare the rest.
            logger.info(
                "the Floatscope server at %s has other data than before (a restored backup?): it is sent what this "
                "process still has, from batch %d on",
                self._peer.server_url,
                welcome.last_seq + 1,
            )
        self._epoch = welcome.epoch
        if self._unreachable:
            if not self._quiet:
                logger.info("reached the Floatscope server at %s again", self._peer.server_url)
            self._unreachable = False
            self._stored_at = self._timing.clock()

    def _tell_where(self) -> None:
        """Say, once and where everybody sees it, under which address the run can be looked at."""
        run = self._identity.run
        place = f"run {run} at {self._peer.server_url.rstrip('/')}/#/run/{quote(run, safe='')}"
        logger.info("%s", place)
        # INFO is invisible unless the user configures logging. A closed or full stderr is nobody's error.
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"floatscope: {place}\n")
                sys.stderr.flush()

    def _warn(self, why: str) -> None:
        if self._unreachable or self._duties.aborted():
            return
        self._unreachable = True
        self.trouble = one_line(why)
        if self._quiet or "server" in os.environ.get("FLOATSCOPE_TOLD", "").split():
            return  # `floatscope run` has said it, for all ranks
        logger.warning(
            "cannot reach a Floatscope server at %s: %s. Training goes on and telemetry waits; "
            "start the server with `floatscope server`, or correct the address. This is said once.",
            self._peer.server_url,
            self.trouble,
        )
