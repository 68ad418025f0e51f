"""Carries step records to the server from two background threads, and never lets the training wait for either.

One thread packs: it takes records whose numbers have arrived and turns them into numbered, encoded batches. The other
one talks to the server. They meet in the ``Outbox``, so a server that hangs stops neither packing nor training.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

import floatscope
from floatscope import wire
from floatscope._conversation import Duties, Timing
from floatscope._flight import FlightRecorder
from floatscope._guard import Guard
from floatscope._link import Link, Peer, backoff_delays, one_line
from floatscope._log import counted, logger
from floatscope._orders import Orders
from floatscope._outbox import Outbox
from floatscope._packer import DeviceSource, Packer
from floatscope._queue import PendingQueue
from floatscope._record import NoThreadError, PendingRecord, Trouble
from floatscope._spool._home import About
from floatscope._spool._leftovers import Leftovers
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._spooler import Spooler, SpoolPlace

__all__ = ["Limits", "Sender", "SenderStats"]


_judging = Guard("the machine was judged")

_PACK_EVERY_S = 0.2
"""With ``Timing.poll_s`` on top, a record waits at most 250 ms before it is on the wire."""
_WAKE_AT_SHARE = 0.25
"""Of ``Limits.pending_bytes``: a queue this full is packed at once. Waking costs the training thread some 15 us."""
_MENDABLE = frozenset({"unauthorized", "protocol", "too_many_runs"})
"""Refusals that a token, an upgrade or a deleted run puts right: a spool keeps what is recorded until then."""
_DUMP_SHARE = 0.5
"""Of ``Limits.outbox_bytes``: a flight recorder's dump waits outside while more than that is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the two queues and of the end. A queue that is full drops its oldest entries and declares them."""

    pending_records: int = 1024
    """Records whose numbers have not been fetched from the device."""
    pending_bytes: int = 64 << 20
    """Host memory of those records."""
    outbox_records: int = 100_000
    """Packed records that the server has not acknowledged."""
    outbox_bytes: int = 24 << 20
    """Encoded bytes of those records."""
    flush_s: float = 5.0
    """Longest time that ``close`` waits for the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStats:
    """Counters since the start. Every record is acknowledged, waiting, or lost for a named reason."""

    put: int
    acknowledged: int
    waiting: int
    waiting_bytes: int
    """Of both queues; up to 4 MiB more are in the packing thread's hands."""
    lost: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    cpu_s: float = 0.0
    failure: str | None = None
    """Why nothing is recorded any more: the server's refusal, or a defect of ours."""
    spool_off: str | None = None
    """Why what waits is in memory only though a spool was asked for: "disk_full", "read_only", ..."""


class Sender:
    """A ``Sink`` that speaks protocol v1 to ``server_url`` (http://HOST:PORT).

    ``token`` travels in the Authorization header only. ``config`` must be plain data; what ``judge`` returns, called on
    the sending thread, joins it as "doctor", and the machine's name as "host". Raises ``ValueError`` for an
    address or a configuration that cannot be used, ``NoThreadError`` without a thread; after that nothing raises. In a
    forked child the copy is inert.
    """

    def __init__(
        self,
        identity: wire.Identity,
        server_url: str,
        token: str | None = None,
        config: dict[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        devices: DeviceSource | None = None,
        flight: FlightRecorder | None = None,
        timing: Timing | None = None,
        delays: Callable[[], Iterator[float]] | None = None,
        spool: SpoolPlace | None = None,
        judge: Callable[[], object] | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._timing = timing or Timing()
        self._wake_at = int(_WAKE_AT_SHARE * self._limits.pending_bytes)
        self._server_url = server_url
        self._world = identity.world
        self._orders = Orders()
        self._cost: wire.Cost | None = None
        self._judge = judge
        self._config = config = _plain(config or {})
        agent = f"floatscope {floatscope.__version__}"
        self._queue, memory = self._empty_queues()
        self._spooler: Spooler | None = None
        self._outbox: Outbox | SpooledOutbox = memory
        if spool is not None:
            self._spooler = Spooler(
                spool,
                About(server=server_url, agent=agent, identity=identity, config=config),
                max_records=self._limits.outbox_records,
                max_bytes=self._limits.outbox_bytes,
                on_leftovers=lambda paths: self._leftovers.start(paths),
            )
            self._outbox = self._spooler.outbox
        self._packer = Packer(
            self._queue,
            self._outbox,
            flight=FlightRecorder(max_steps=0, max_bytes=0) if flight is None else flight,
            orders=self._orders,
            devices=devices,
            dump_bytes=_DUMP_SHARE * self._limits.outbox_bytes,
        )
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._packed = threading.Event()
        self._abort = threading.Event()
        self._reason = ""
        self._inert = self._told = False
        self._finished_at: float | None = None
        self._failure: str | None = None
        self._put = 0
        self._put_too_late = 0
        self._thrown_away = 0
        self._cpu_s = [0.0, 0.0]
        rng = random.Random()  # noqa: S311  # jitter, no secret
        self._link = Link(
            Peer(
                server_url=server_url,
                token=token,
                identity=identity,
                agent=agent,
                config=config,
            ),
            self._outbox,
            Duties(
                beat=self._beat,
                farewell=lambda: self._reason if self._packed.is_set() else None,
                aborted=self._abort.is_set,
                heard=self._orders.hear,
                last_beat=self._beat,
            ),
            pause=self._pause,
            delays=delays or (lambda: backoff_delays(rng)),
            timing=self._timing,
            welcomed=self._note_welcome,
        )
        self._leftovers = Leftovers(
            server_url, token, due=lambda: self._link.connections > 0, ends=self._closing, aborted=self._abort
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(body, number), name=f"floatscope-{name}", daemon=True)
            for number, (name, body) in enumerate((("pack", self._pack_until_closed), ("send", self._talk)))
        ]
        self._spool_threads = [
            threading.Thread(target=body, name=f"floatscope-{name}", daemon=True)
            for name, body in (self._spooler.bodies() if self._spooler is not None else ())
        ]
        for thread in (*self._threads, *self._spool_threads):
            self._start(thread)
        _living.add(self)

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            # At the process's limit. What was started already ends by itself.
            self._abort.set()
            self._wake.set()
            if self._spooler is not None:
                self._spooler.finish("")
            raise NoThreadError(str(error)) from None

    def _empty_queues(self) -> tuple[PendingQueue, Outbox]:
        limits = self._limits
        return (
            PendingQueue(max_records=limits.pending_records, max_bytes=limits.pending_bytes),
            Outbox(max_records=limits.outbox_records, max_bytes=limits.outbox_bytes),
        )

    # For the training thread

    def put(self, record: PendingRecord) -> None:
        """Take over ``record``. Never blocks and never raises; no host synchronisation."""
        if self._inert:
            return
        self._put += 1
        if self._failure is not None or self._finished_at is not None:
            self._put_too_late += 1
            return
        if self._queue.put(record) >= self._wake_at and not self._wake.is_set():
            self._wake.set()

    @property
    def cpu_s(self) -> float:
        """Processor time of all threads, in seconds, as of their last pause."""
        return sum(self._cpu_s) + (sum(self._spooler.cpu_s) if self._spooler is not None else 0.0)

    def orders(self) -> Sequence[wire.Focus | wire.Alert | Trouble]:
        """What the server has said since the last call, each alert once, and what the records have shown."""
        return self._orders.take()

    def report(self, cost: wire.Cost) -> None:
        """Tell the server with the next beat."""
        self._cost = cost

    def finish(self, reason: str) -> None:
        """Begin to send what is left, for at most ``Limits.flush_s`` seconds from now, and to say goodbye."""
        if self._inert or self._finished_at is not None:
            return
        self._finished_at = time.monotonic()
        self._reason = reason
        self._closing.set()
        self._wake.set()

    def close(self, reason: str = "finished") -> None:
        """Wait until all is sent or the time is over, and stop. Without a ``finish`` before, that comes first."""
        if self._inert:
            return
        self.finish(reason)
        assert self._finished_at is not None
        deadline = self._finished_at + self._limits.flush_s
        # What the server does not take in time is written to the disk in the last tenth.
        reserve = 0.1 * self._limits.flush_s if self._spooler is not None else 0.0
        for thread in self._threads:
            thread.join(max(0.0, deadline - reserve - time.monotonic()))
        self.abandon()
        if self._spooler is not None:
            self._spooler.finish(self._reason)
            for thread in self._spool_threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            self._leftovers.join(deadline)
        if not self._told:
            self._told = True
            self._tell_what_is_left()

    def _tell_what_is_left(self) -> None:
        waiting = self.stats().waiting
        if self._spooler is not None and (kept := min(waiting, self._spooler.kept)):
            waiting -= kept
            where = self._spooler.place.directory
            # One rank of a host speaks for all: nothing is lost, and they share a folder.
            logger.log(
                logging.WARNING if os.environ.get("LOCAL_RANK", "0") == "0" else logging.INFO,
                "%s in %s%s; `floatscope sync` sends %s",
                counted(kept, "record waits", "records wait"),
                where,
                ", beside those of other ranks" if self._world > 1 else "",
                "it" if kept == 1 and self._world == 1 else "them",
            )
        if waiting > 0 and self._failure is None:
            logger.warning(
                "%s could not be delivered to %s within %g s and %s lost",
                counted(waiting, "record", "records"),
                self._server_url,
                self._limits.flush_s,
                "is" if waiting == 1 else "are",
            )

    def abandon(self) -> None:
        """Stop at once, whatever is left."""
        self._abort.set()
        self._closing.set()
        self._wake.set()
        _living.discard(self)

    def stats(self) -> SenderStats:
        """Counters as of now."""
        counts = self._outbox.counts()
        lost = dict(counts.lost)
        if unsent := self._put_too_late + self._thrown_away:
            lost["not_sending"] = lost.get("not_sending", 0) + unsent
        return SenderStats(
            put=self._put,
            acknowledged=counts.acknowledged,
            waiting=self._put - counts.acknowledged - sum(lost.values()),
            waiting_bytes=counts.waiting_bytes + self._queue.nbytes,
            lost=lost,
            connections=self._link.connections,
            cpu_s=self.cpu_s,
            failure=self._failure,
            spool_off=self._spooler.off if self._spooler is not None else None,
        )

    # The packing thread

    def _pack_until_closed(self) -> None:
        self._packer.start()
        try:
            while not self._abort.is_set() and self._failure is None:
                closing = self._closing.is_set()
                self._packer.pack(self._link.max_block_bytes, closing=closing)
                if closing and not len(self._queue):
                    break
                self._cpu_s[0] = time.thread_time()
                self._wake.wait(0.01 if closing else _PACK_EVERY_S)
                self._wake.clear()
        finally:
            self._packer.close()
        self._packed.set()

    # The sending thread

    def _talk(self) -> None:
        if self._judge is not None:
            with _judging:
                self._config["doctor"] = _plain({"verdicts": self._judge()})["verdicts"]
                self._config["host"] = socket.gethostname()
        told = False
        while (refused := self._link.run()) is not None:
            why = (
                f"the Floatscope server at {self._server_url} refused: "
                f"{one_line(f'{refused.message} ({refused.hint})')}. Training goes on"
            )
            if self._spooler is None or refused.code not in _MENDABLE:
                self._stop(f"{why} without telemetry.")
                return
            if not told:
                told = True
                logger.warning("%s, and what is recorded waits in %s.", why, self._spooler.place.directory)
            if self._closing.is_set():
                return
            self._pause(self._timing.mend_s)

    def _note_welcome(self, welcome: wire.Welcome) -> None:
        if self._spooler is not None:
            self._spooler.note_attempt(welcome.attempt)

    def _pause(self, seconds: float) -> None:
        # The first pause after ``close`` begins is cut short, the later ones are not.
        (self._abort if self._closing.is_set() else self._closing).wait(seconds)

    def _beat(self) -> wire.Beat:
        self._cpu_s[1] = time.thread_time()
        stats = self.stats()
        return wire.Beat(
            step=self._packer.last_step,
            queue_bytes=stats.waiting_bytes,
            spool_bytes=self._spooler.nbytes() if self._spooler is not None else 0,
            dropped=sum(stats.lost.values()),
            overhead_s=stats.cpu_s,
            cost=self._cost,
        )

    # Ends

    def _guarded(self, body: Callable[[], None], number: int) -> None:
        try:
            body()
        except Exception as error:  # the one guard of both threads
            logger.debug("the sender failed", exc_info=True)
            self._stop(f"sending stopped after an internal error: {error!r}. Training goes on.")
        self._cpu_s[number] = time.thread_time()

    def _stop(self, why: str) -> None:
        if not self._abort.is_set():
            logger.warning("%s", why)
        self._failure = why
        self._abort.set()
        self._wake.set()
        self._thrown_away += self._queue.clear()
        self._outbox.abandon("not_sending")

    def _become_inert(self) -> None:
        # In a forked child. The threads do not exist here, and a lock may be held by one of them for ever.
        self._inert = True
        self._link.forget_socket()
        self._leftovers.forget_descriptors()
        if self._spooler is not None:
            self._spooler.forget_descriptors()
        self._packer.forget()
        self._queue, self._outbox = self._empty_queues()


_living: weakref.WeakSet[Sender] = weakref.WeakSet()


def _silence_children() -> None:
    for sender in list(_living):
        sender._become_inert()


def _close_all() -> None:
    senders = list(_living)
    try:
        for sender in senders:
            sender.finish("exit")
        for sender in senders:
            sender.close()
    except KeyboardInterrupt:
        for sender in senders:
            sender.abandon()


os.register_at_fork(after_in_child=_silence_children)
atexit.register(_close_all)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    try:
        data = msgspec.msgpack.encode(config)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"config: give plain numbers, strings, lists and dicts only ({error})") from error
    if len(data) > wire.MAX_BLOCK_BYTES // 4:
        raise ValueError(f"config: {len(data)} bytes encoded, more than the {wire.MAX_BLOCK_BYTES // 4} allowed")
    plain: dict[str, Any] = msgspec.msgpack.decode(data)
    return plain
