"""Between a connection and the store: how much may be on its way, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from floatscope import wire
from floatscope_server.senders import Senders
from floatscope_server.settings import Settings
from floatscope_server.store import Store

__all__ = ["Conversation", "Intake", "Refused"]

_SUPERSEDED = wire.Refused(
    code="superseded",
    message="another process has begun to send the same log",
    hint="what it holds arrives once, through that one",
)


class Refused(Exception):  # noqa: N818 - named after the message that it carries
    """The conversation ends with this message."""

    def __init__(self, message: wire.Refused) -> None:
        super().__init__(message.message)
        self.message = message


class Intake:
    """Bounds the bytes that all agents together have received and not yet committed."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.queued_bytes = 0
        self.received_bytes = 0
        self.received_messages = 0
        self.acks = 0
        self.nacks = 0
        self.agents = 0
        self.senders = Senders()
        self._limit = settings.queue_bytes
        self._room = asyncio.Condition()

    async def admit(self, size: int) -> None:
        """Wait until ``size`` more bytes may be queued; one message always may, however long."""
        async with self._room:
            await self._room.wait_for(lambda: self.queued_bytes == 0 or self.queued_bytes + size <= self._limit)
            self.queued_bytes += size
            self.received_bytes += size
            self.received_messages += 1

    async def release(self, size: int) -> None:
        """``size`` bytes are committed or refused."""
        async with self._room:
            self.queued_bytes -= size
            self._room.notify_all()


class Conversation:
    """What one agent says over one connection, in order; the transport calls ``take`` for each message.

    ``answer`` is called in the event loop with every reply.
    """

    def __init__(self, intake: Intake, answer: Callable[[wire.ServerMessage], None]) -> None:
        self._intake = intake
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self.run = ""
        """The name in the hello."""
        self.rank = 0
        self._writer: str | None = None
        self._sender = ""
        self._open = asyncio.Semaphore(wire.MAX_IN_FLIGHT)
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._releases: set[asyncio.Task[None]] = set()

    async def take(self, data: bytes) -> None:
        """Hand one message to the store; waits while too much is on its way. ``Refused`` if it has no place here."""
        try:
            message = wire.decode_agent(data)
        except wire.WireError as error:
            raise Refused(
                wire.Refused(
                    code="malformed",
                    message=str(error)[:500],
                    hint="install the same release of floatscope on both sides",
                )
            ) from None
        if isinstance(message, wire.Hello) != (self._writer is None):
            raise Refused(
                wire.Refused(
                    code="order",
                    message="a conversation begins with hello, and has only one",
                    hint="this is an agent's mistake: report it",
                )
            )
        await self._open.acquire()
        await self._intake.admit(len(data))
        self._pending += 1
        self._idle.clear()
        if isinstance(message, wire.Hello):
            self._writer, self.run = message.identity.writer, message.identity.run
            self.rank = message.identity.rank
        assert self._writer is not None
        size = len(data)
        # Nothing is awaited from here to ``submit``: what another sender said is before its successor's hello.
        if not self._may_speak(message):
            self._make_room()
            await self._intake.release(size)
            raise Refused(_SUPERSEDED)

        def reply(answer: wire.ServerMessage) -> None:
            # The loop of a connection that is gone may be closed already when the server stops.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._settle, answer, size)

        self._intake.store.submit(self._writer, message, reply)
        if isinstance(message, wire.Hello):
            await self.settled()

    def _may_speak(self, message: wire.AgentMessage) -> bool:
        assert self._writer is not None
        if isinstance(message, wire.Hello):
            self._sender = message.sender
            return not self._sender or self._intake.senders.greet(self._writer, self._sender)
        return not self._sender or self._intake.senders.may_speak(self._writer, self._sender)

    def _make_room(self) -> None:
        self._open.release()
        self._pending -= 1
        if not self._pending:
            self._idle.set()

    async def settled(self) -> None:
        """Wait until everything taken has been answered."""
        await self._idle.wait()

    def _settle(self, answer: wire.ServerMessage, size: int) -> None:
        release = self._loop.create_task(self._intake.release(size))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        self._make_room()
        if isinstance(answer, wire.Ack):
            self._intake.acks += 1
        elif isinstance(answer, wire.Nack):
            self._intake.nacks += 1
        self._answer(answer)
