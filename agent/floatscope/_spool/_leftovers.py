"""Speaks for writers that are gone: what their spools still hold goes to the server, each over its own connection."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import floatscope
from floatscope import wire
from floatscope._conversation import Duties, Timing
from floatscope._link import Link, Peer, backoff_delays, one_line
from floatscope._log import counted, logger
from floatscope._spool._home import About, Folder
from floatscope._spool._outbox import SpooledOutbox
from floatscope._spool._segments import Contents, Segments

__all__ = ["Delivery", "Leftovers", "deliver"]

_LOOK_EVERY_S = 0.25
_PATIENCE_S = 30.0
_KILLED = "killed"
"""Reason in the goodbye of a process that could not say one. The server takes any but its own for a failure."""


@dataclass(slots=True, kw_only=True)
class Delivery:
    """What became of the spool of one writer; ``problem`` is why something of it stays where it is."""

    writer: str
    run: str = ""
    rank: int = 0
    server: str = ""
    delivered: int = 0
    """Step records that the server acknowledged now."""
    waiting: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    damaged_bytes: int = 0
    torn_bytes: int = 0
    """The beginning of a record at the very end, which its process was killed in the middle of writing."""
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether everything that was written was delivered and nothing was damaged."""
        return self.problem is None and not self.waiting and not self.lost and not self.damaged_bytes


def deliver(
    folder: Folder,
    *,
    server: str | None,
    token: str | None,
    patience_s: float,
    aborted: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = time.sleep,
    holding: Callable[[Link | None, Segments | None], None] = lambda link, segments: None,
) -> Delivery:
    """Send what ``folder`` holds, to ``server`` or where its writer sent it, and remove it when all is there.

    Gives up once ``patience_s`` seconds brought nothing. Never raises ``OSError``: what the disk refuses is a problem
    of the delivery. The folder is closed afterwards.
    """
    delivery = Delivery(writer=folder.path.name)
    segments = Segments(folder.path, 1)
    try:
        _deliver(folder, segments, delivery, server, token, patience_s, aborted, pause, holding)
    except OSError as error:
        delivery.problem = f"{folder.path}: {error.strerror or error}"
    finally:
        holding(None, None)
        segments.forget_descriptors()
        folder.close()
    return delivery


def _deliver(
    folder: Folder,
    segments: Segments,
    delivery: Delivery,
    server: str | None,
    token: str | None,
    patience_s: float,
    aborted: Callable[[], bool],
    pause: Callable[[float], None],
    holding: Callable[[Link | None, Segments | None], None],
) -> None:
    contents = segments.load()
    delivery.damaged_bytes = contents.damaged_bytes - contents.torn_bytes
    delivery.torn_bytes = contents.torn_bytes
    about = folder.about() or About.decoded(contents.about)
    if about is None:
        if contents.last_seq or delivery.damaged_bytes:
            delivery.problem = f"what says who wrote {folder.path} is damaged"
            return
        folder.remove()
        return
    delivery.run, delivery.rank, delivery.server = about.identity.run, about.identity.rank, server or about.server
    outbox = _outbox(folder, segments, contents, about)
    clock = _Patience(outbox, patience_s)
    link = Link(
        Peer(
            server_url=delivery.server,
            token=token,
            identity=about.identity,
            agent=f"floatscope {floatscope.__version__}",
            config=about.config,
            gone=True,
        ),
        outbox,
        Duties(
            beat=lambda: wire.Beat(step=contents.last_step, spool_bytes=segments.nbytes(outbox.acknowledged)),
            farewell=lambda: contents.bye if contents.bye is not None else _KILLED,
            aborted=lambda: aborted() or clock.over(),
            heard=lambda _: None,  # orders are for a training that goes on
        ),
        pause=pause,
        delays=lambda: backoff_delays(random.Random()),  # noqa: S311  # jitter, no secret
        timing=Timing(),
        quiet=True,
    )
    holding(link, segments)
    refused = link.run()
    counts = outbox.counts()
    delivery.delivered, delivery.waiting = counts.acknowledged, counts.waiting
    delivery.lost = _without_torn(counts.lost, contents)
    if refused is not None:
        delivery.problem = f"the server refused: {one_line(f'{refused.message} ({refused.hint})')}"
    elif not link.said_goodbye:
        delivery.problem = link.trouble or "the server does not answer"
    if link.said_goodbye:
        folder.remove()
    else:  # a process killed before its first step has nothing but an end to tell: without it there is no such run
        folder.write_cursor(outbox.acknowledged)


def _without_torn(lost: dict[str, int], contents: Contents) -> dict[str, int]:
    """``lost`` without the record that was never written to its end. The server is told of it all the same."""
    if not contents.torn_bytes or contents.torn is None:
        return lost
    left = {reason: n - contents.torn.records * (reason == contents.torn.reason) for reason, n in lost.items()}
    return {reason: n for reason, n in left.items() if n > 0}


def _outbox(folder: Folder, segments: Segments, contents: Contents, about: About) -> SpooledOutbox:
    outbox = SpooledOutbox(max_records=1 << 20, max_bytes=1 << 20, window_bytes=0, wake=lambda: None)
    outbox.resume(segments, contents, folder.cursor(), about.layers)
    if contents.torn is not None:
        outbox.append(contents.torn)
    return outbox


class _Patience:
    """Runs out when nothing was acknowledged for a while."""

    def __init__(self, outbox: SpooledOutbox, patience_s: float) -> None:
        self._outbox = outbox
        self._patience_s = patience_s
        self._acknowledged = -1
        self._since = time.monotonic()

    def over(self) -> bool:
        acknowledged = self._outbox.acknowledged
        if acknowledged != self._acknowledged:
            self._acknowledged, self._since = acknowledged, time.monotonic()
        return time.monotonic() - self._since > self._patience_s


class Leftovers:
    """A thread that sends what processes which are gone have left for the same server, after the living one is up."""

    def __init__(
        self,
        server: str,
        token: str | None,
        *,
        due: Callable[[], bool],
        ends: threading.Event,
        aborted: threading.Event,
    ) -> None:
        """Begins when ``due`` says so; stops with either event."""
        self._server = server
        self._token = token
        self._due = due
        self._ends = ends
        self._aborted = aborted
        self._thread: threading.Thread | None = None
        self._folder: Folder | None = None
        self._held: tuple[Link | None, Segments | None] = None, None

    def start(self, paths: Sequence[Path]) -> None:
        """Send what is in those folders whose writers are gone."""
        thread = threading.Thread(target=self._run, args=(paths,), name="floatscope-leftovers", daemon=True)
        with contextlib.suppress(RuntimeError):  # at the process's limit of threads; the next start takes them
            thread.start()
            self._thread = thread

    def join(self, deadline: float) -> None:
        """Wait for its end until ``time.monotonic()`` is ``deadline``."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def forget_descriptors(self) -> None:
        """In a forked child."""
        link, segments = self._held
        if link is not None:
            link.forget_socket()
        if segments is not None:
            segments.forget_descriptors()
        if self._folder is not None:
            self._folder.close()

    def _run(self, paths: Sequence[Path]) -> None:
        try:
            while not self._due():
                if self._ends.wait(_LOOK_EVERY_S) or self._aborted.is_set():
                    return
            # The newest first: each goes before the attempts of its run that the server knows.
            for path in reversed(paths):
                if not self._over():
                    self._send(path)
        except OSError as error:
            logger.debug("what other processes left could not be read: %s", error)
        except Exception as error:  # the one guard of this thread
            logger.debug("what other processes left could not be sent: %r", error, exc_info=True)

    def _send(self, path: Path) -> None:
        self._folder = folder = Folder.adopt(path)
        if folder is None:
            return
        about = folder.about()
        if about is not None and about.server != self._server:
            folder.close()
            return
        delivery = deliver(
            folder,
            server=self._server,
            token=self._token,
            patience_s=_PATIENCE_S,
            aborted=self._over,
            pause=self._pause,
            holding=self._hold,
        )
        sent = counted(delivery.delivered, "record", "records")
        logger.info("sent %s that the run %s had left in %s", sent, delivery.run, path)

    def _pause(self, seconds: float) -> None:
        self._ends.wait(seconds)

    def _hold(self, link: Link | None, segments: Segments | None) -> None:
        self._held = link, segments

    def _over(self) -> bool:
        return self._ends.is_set() or self._aborted.is_set()
