"""One writer's way to the server: the agent's outbox and connection, with a bounded queue before them."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import floatscope
from floatscope import wire
from floatscope._conversation import Duties, Timing
from floatscope._link import Link, Peer, backoff_delays, one_line
from floatscope._outbox import Outbox
from floatscope._packing import Batch
from floatscope._spool._home import About
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._spooler import Spooler, SpoolPlace

__all__ = ["Channel", "ChannelError", "StoppedError", "Where"]

_WAITING_BYTES = 8 << 20
"""Encoded bytes that may wait for the server before reading pauses: the file keeps the rest."""
_LOOK_S = 0.01
_UNBOUNDED = 1 << 50
_MEMORY_RECORDS, _MEMORY_BYTES = 100_000, 24 << 20
"""What a spool may hold in memory; beyond it the disk does."""


class ChannelError(Exception):
    """The server does not take it; the text says why."""


class StoppedError(Exception):
    """Somebody wants to end before the server has said what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which server, and how long to wait for it: forever with None."""

    server: str
    token: str | None
    patience_s: float | None
    spool: SpoolPlace | None = None
    """For what cannot be read again: then nothing waits for the server."""
    sender: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells this process from another one that reads the same log."""


class Channel:
    """Speaks as one writer until ``close``. Everything is for one thread."""

    def __init__(
        self,
        where: Where,
        identity: wire.Identity,
        config: dict[str, Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``stopped``: whether somebody wants to end; nothing is waited for then. ``tell`` hears once that the server
        cannot be reached."""
        self._tell: Callable[[str], None] | None = tell
        self._where = where
        self._stopped = stopped
        self._greeted = threading.Event()
        self._abort = threading.Event()
        self._ending = threading.Event()
        self._welcome: wire.Welcome | None = None
        self._refused: wire.Refused | None = None
        self._reason: str | None = None
        self._last_step = -1
        agent = f"floatscope {floatscope.__version__}"
        self._spooler: Spooler | None = None
        self._outbox: Outbox | SpooledOutbox = Outbox(max_records=_UNBOUNDED, max_bytes=_UNBOUNDED)
        if where.spool is not None:
            about = About(server=where.server, agent=agent, identity=identity, config=config)
            self._spooler = Spooler(where.spool, about, max_records=_MEMORY_RECORDS, max_bytes=_MEMORY_BYTES)
            self._outbox = self._spooler.outbox
        self._link = Link(
            Peer(
                server_url=where.server,
                token=where.token,
                identity=identity,
                agent=agent,
                config=config,
                sender="" if where.spool is not None else where.sender,
            ),
            self._outbox,
            Duties(
                beat=lambda: wire.Beat(step=self._last_step),
                farewell=lambda: self._reason,
                aborted=self._abort.is_set,
            ),
            pause=self._pause,
            delays=lambda: backoff_delays(random.Random()),  # noqa: S311  # jitter, no secret
            timing=Timing(),
            quiet=True,
            welcomed=self._note_welcome,
        )
        bodies = [self._talk, *(body for _, body in (self._spooler.bodies() if self._spooler else ()))]
        self._threads = [threading.Thread(target=body, name="floatscope-log", daemon=True) for body in bodies]
        for thread in self._threads:
            thread.start()

    def _talk(self) -> None:
        self._refused = self._link.run()
        self._greeted.set()

    def _pause(self, seconds: float) -> None:
        # The first pause after the end begins is cut short, the later ones are not.
        (self._abort if self._ending.is_set() else self._ending).wait(seconds)

    def _note_welcome(self, welcome: wire.Welcome) -> None:
        if self._welcome is None:
            self._welcome = welcome
        if self._spooler is not None:
            self._spooler.note_attempt(welcome.attempt)
        self._greeted.set()

    @property
    def trouble(self) -> str:
        """Why the server cannot be reached, empty while it can be."""
        return "" if self._link.connections else self._link.trouble

    @property
    def max_block_bytes(self) -> int:
        """What the server takes at most."""
        return self._link.max_block_bytes

    def welcome(self) -> wire.Welcome | None:
        """What the server said first; None with a spool, which waits for nobody. Raises ``ChannelError``, and
        ``StoppedError`` if somebody stopped before it said anything."""
        if self._spooler is not None:
            return None
        self._wait(self._greeted.is_set)
        self.check()
        if self._welcome is None:
            raise StoppedError
        return self._welcome

    def send(self, batch: Batch) -> None:
        """Queue it, once there is room; with a spool at once. Raises ``ChannelError``."""
        if self._spooler is None:
            self._wait(lambda: self._refused is not None or self._outbox.counts().waiting_bytes < _WAITING_BYTES)
        self.check()
        self._last_step = max(self._last_step, batch.last)
        self._outbox.append(batch)

    def waits(self) -> int:
        """Records that the server has not acknowledged."""
        return self._outbox.counts().waiting

    def leave(self) -> None:
        """Nothing follows: say goodbye once all is delivered, and do not wait for it."""
        self._reason = self._reason or "closed"
        self._ending.set()

    def close(self, reason: str, patience_s: float) -> bool:
        """Say goodbye once all is delivered; whether it was within ``patience_s`` without progress."""
        self._reason = self._reason or reason
        self._ending.set()
        before, since = self.waits(), time.monotonic()
        while self._threads[0].is_alive() and time.monotonic() - since < patience_s:
            self._threads[0].join(_LOOK_S)
            if self.waits() != before:
                before, since = self.waits(), time.monotonic()
        self._abort.set()
        if self._spooler is not None:
            self._spooler.finish(reason)
        for thread in self._threads:
            thread.join(patience_s)
        return self._link.said_goodbye

    def abandon(self) -> None:
        """Stop without a goodbye."""
        self._abort.set()
        self._ending.set()
        if self._spooler is not None:
            self._spooler.finish("closed")
        for thread in self._threads:
            thread.join(2.0)

    def _wait(self, done: Callable[[], bool]) -> None:
        patience = self._where.patience_s
        waiting, since = self.waits(), time.monotonic()
        while not done():
            if self._stopped():
                return
            if self.waits() != waiting:
                waiting, since = self.waits(), time.monotonic()
            if patience is None and self._tell is not None and self.trouble:
                self._tell(f"cannot reach a Floatscope server at {self._where.server}: {self.trouble}; trying on")
                self._tell = None
            if patience is not None and time.monotonic() - since > patience:
                why = self._link.trouble or "it does not answer"
                raise ChannelError(
                    f"cannot reach a Floatscope server at {self._where.server}: {why}; start it with "
                    "`floatscope server`, or name another with --server"
                )
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raises ``ChannelError`` once the server wants nothing more."""
        if self._refused is not None:
            why = one_line(f"{self._refused.message} ({self._refused.hint})")
            raise ChannelError(f"the server at {self._where.server} refused: {why}")
