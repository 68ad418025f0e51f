"""Where agents deliver: a socket, and the same bytes as one POST."""

from __future__ import annotations

import asyncio
import struct
from collections import deque

from fastapi import APIRouter, Request, Response, WebSocket, WebSocketDisconnect

from floatscope import wire
from floatscope_server.agents import Agents
from floatscope_server.database import StoreError
from floatscope_server.intake import Conversation, Intake, Refused
from floatscope_server.responses import Refusal
from floatscope_server.security import admit_socket
from floatscope_server.services import Running, services_of

__all__ = ["WIRE_MEDIA_TYPE", "router"]

router = APIRouter()

WIRE_MEDIA_TYPE = "application/vnd.floatscope.wire"
_HELLO_S = 10.0
_SILENCE_S = 60.0
"""Agents beat every 10 s."""
_MOST_WAITING = 64
"""Answers that wait for an agent before it is told anything else, and before anything more is taken from it."""
_LENGTH = struct.Struct("<I")

_CLOSED, _POLICY, _RESTART = 1000, 1008, 1012


@router.websocket("/ingest/v1")
async def ingest_socket(socket: WebSocket) -> None:
    """A hello, then blocks, gaps and beats; each is acknowledged after its commit reached the disk."""
    if not await admit_socket(socket, "/ingest/v1"):
        return
    offered = socket.scope["subprotocols"]
    await socket.accept(subprotocol=wire.SUBPROTOCOL if wire.SUBPROTOCOL in offered else None)
    services = services_of(socket)
    intake = services.intake
    intake.agents += 1
    try:
        await _converse(socket, intake, services.agents)
    finally:
        intake.agents -= 1


async def _converse(socket: WebSocket, intake: Intake, agents: Agents) -> None:
    outgoing = _Outgoing()

    def answer(message: wire.ServerMessage) -> None:
        outgoing.put(message)
        if isinstance(message, wire.Welcome):
            agents.add(conversation.run, message.attempt, outgoing.tell, rank=conversation.rank)

    conversation = Conversation(intake, answer)
    try:
        await _until_one_side_ends(socket, conversation, outgoing)
    finally:
        agents.remove(conversation.run, outgoing.tell)


async def _until_one_side_ends(socket: WebSocket, conversation: Conversation, outgoing: _Outgoing) -> None:
    sender = asyncio.create_task(_send(socket, outgoing))
    reader = asyncio.create_task(_receive(socket, conversation, outgoing))
    done, _ = await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
    if reader in done:
        outgoing.end()
        await sender
        reader.result()
    else:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _receive(socket: WebSocket, conversation: Conversation, outgoing: _Outgoing) -> None:
    patience = _HELLO_S
    try:
        while True:
            async with asyncio.timeout(patience):
                event = await socket.receive()
            if event["type"] == "websocket.disconnect":
                return
            data = event.get("bytes")
            if data is None:
                hint = "this is an agent's mistake: report it"
                raise Refused(wire.Refused(code="malformed", message="messages are binary", hint=hint))
            await conversation.take(data)
            if outgoing.refused:
                return
            await outgoing.room()
            patience = _SILENCE_S
    except TimeoutError:
        return
    except StoreError:
        outgoing.code = _RESTART
    except Refused as refused:
        await conversation.settled()
        outgoing.put(refused.message)


class _Outgoing:
    """Answers on their way to one agent; of acknowledgements in a row only the last is kept."""

    def __init__(self) -> None:
        self.code = _CLOSED
        self.refused = False
        self._answers: deque[wire.ServerMessage] = deque()
        self._ended = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    def put(self, answer: wire.ServerMessage) -> None:
        if isinstance(answer, wire.Refused):
            self.refused = True
            self.code = _POLICY
        if isinstance(answer, wire.Ack) and self._answers and isinstance(self._answers[-1], wire.Ack):
            self._answers.pop()
        self._answers.append(answer)
        self._wake.set()

    def tell(self, message: wire.ServerMessage) -> bool:
        """Queue what was not asked for, if the agent takes its answers; whether it was."""
        if len(self._answers) >= _MOST_WAITING or self._ended or self.refused:
            return False
        self.put(message)
        return True

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def get(self) -> wire.ServerMessage | None:
        """The next answer; None after the last."""
        while not self._answers:
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        answer = self._answers.popleft()
        self._room.set()
        return answer

    async def room(self) -> None:
        """Wait while an agent that does not listen has too many answers to come."""
        while len(self._answers) >= _MOST_WAITING:
            self._room.clear()
            await self._room.wait()


async def _send(socket: WebSocket, outgoing: _Outgoing) -> None:
    try:
        while (answer := await outgoing.get()) is not None:
            await socket.send_bytes(wire.encode(answer))
        await socket.close(outgoing.code)
    except (WebSocketDisconnect, RuntimeError):
        return  # the agent has gone; what it sent and was not acknowledged it sends again


def _split(content: bytes) -> list[bytes]:
    messages: list[bytes] = []
    at = 0
    while at < len(content):
        if at + _LENGTH.size > len(content):
            raise Refusal(400, "malformed", "the body ends inside a length", "send each message after its length")
        (size,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        if size > len(content) - at:
            raise Refusal(400, "malformed", "the body ends inside a message", "send each message after its length")
        messages.append(content[at : at + size])
        at += size
    return messages


@router.post("/ingest/v1", response_class=Response, responses={200: {"content": {WIRE_MEDIA_TYPE: {}}}})
async def ingest_post(request: Request, services: Running) -> Response:
    """The messages of a socket in one body, hello first, each after its length (uint32 LE); answers likewise."""
    messages = _split(await request.body())
    answers: list[wire.ServerMessage] = []
    conversation = Conversation(services.intake, answers.append)
    try:
        for message in messages:
            await conversation.take(message)
            if answers and isinstance(answers[-1], wire.Refused):
                break
    except Refused as refused:
        await conversation.settled()
        answers.append(refused.message)
    except StoreError as error:
        raise Refusal(503, "stopping", str(error), "try again") from error
    await conversation.settled()
    encoded = [wire.encode(answer) for answer in answers]
    content = b"".join(_LENGTH.pack(len(part)) + part for part in encoded)
    return Response(content, media_type=WIRE_MEDIA_TYPE)
