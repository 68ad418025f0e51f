"""What waits for the writer thread, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from floatscope import wire
from floatscope_server.store.batch import Reply

__all__ = ["Counters", "Incoming", "Job", "guarded", "later"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_RETRY_AFTER_S = 5.0


@dataclass(slots=True, kw_only=True)
class Incoming:
    """A message of a writer."""

    writer: str
    message: wire.AgentMessage
    reply: Reply
    answered: bool = False

    def answer(self, message: wire.ServerMessage) -> None:
        """Reply, once; a connection that is gone must not stop the writer."""
        self.answered = True
        guarded(self.reply, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to be done with the connection; ``future`` gets what it returns or raises."""

    run: Callable[[Connection], object]
    future: Future[object]


@dataclass(slots=True, kw_only=True)
class Counters:
    """What the writer thread has done since the start."""

    commits: int = 0
    blocks: int = 0
    frames: int = 0
    failed_commits: int = 0


def later(message: wire.AgentMessage, code: str, text: str, expected: int) -> wire.ServerMessage:
    """The answer by which the agent keeps ``message`` and sends it again, with all from ``expected`` on."""
    if isinstance(message, wire.Hello):
        hint = "see to the server's disk and its log; the agent tries again by itself"
        return wire.Refused(code=code, message=text, hint=hint, retryable=True)
    if isinstance(message, wire.Beat):
        return wire.Beat()
    return wire.Nack(
        seq=message.seq, code=code, message=text, expected=expected, retryable=True, retry_after_s=_RETRY_AFTER_S
    )


def guarded(observe: Callable[[_T], None], item: _T) -> None:
    """An observer's mistake must not stop the writer."""
    try:
        observe(item)
    except Exception:  # noqa: BLE001 - logged
        _log.exception("an observer failed")
