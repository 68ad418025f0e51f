"""The socket of a page that follows a run."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from sqlmodel import select

from floatscope import wire
from floatscope._formats import formats
from floatscope_server.auth import ROUTES
from floatscope_server.jsontext import encode_json
from floatscope_server.live import Viewer
from floatscope_server.live_columns import Heat
from floatscope_server.models import Run
from floatscope_server.query.fields import METRICS
from floatscope_server.query.ratio import problem_of_kind
from floatscope_server.responses import error_body
from floatscope_server.security import admit_socket
from floatscope_server.services import Services, services_of

__all__ = ["LIVE_MESSAGES", "router"]

router = APIRouter()

_MAX_TEXT = 4096
_STUCK_S = 20.0
_TRY_AGAIN = 1013
_POLICY = 1008
_ALIVE_S = 10.0
"""Between two signs of life: a browser is not told of a connection that was lost on the way."""
_SESSION_S = 1.0
"""Between two looks whether the session still holds."""


class _Look(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    metric: str
    format: str = "auto"


class _Subscribe(msgspec.Struct, tag="subscribe"):
    run: str
    heat: _Look | None = None


class _Unsubscribe(msgspec.Struct, tag="unsubscribe"):
    pass


LIVE_MESSAGES = ("subscribe", "unsubscribe")

_decoder = msgspec.json.Decoder(_Subscribe | _Unsubscribe)


@router.websocket("/live/v1")
async def live_socket(socket: WebSocket) -> None:
    """JSON text both ways; new heat map columns come as binary FSB1."""
    if not await admit_socket(socket, "/live/v1"):
        return
    services = services_of(socket)
    await socket.accept()
    viewer = Viewer(services.settings)
    if not services.live.add(viewer):
        await socket.close(_TRY_AGAIN, "too many viewers")
        return
    viewer.put(
        encode_json({"type": "welcome", "server_time": services.store.now(), "mode": services.gatekeeper.mode}).decode()
    )
    sender = asyncio.create_task(_send(socket, viewer))
    reader = asyncio.create_task(_receive(socket, viewer, services))
    session = asyncio.create_task(_signed_out(socket, services))
    alive = asyncio.create_task(_alive(viewer, services))
    tasks = (sender, reader, session, alive)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        services.live.remove(viewer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if done == {session}:
        async with asyncio.timeout(_STUCK_S):
            await socket.close(_POLICY, "the session has ended")


async def _alive(viewer: Viewer, services: Services) -> None:
    while True:
        await asyncio.sleep(_ALIVE_S)
        viewer.put(encode_json({"type": "alive", "server_time": services.store.now()}).decode())


async def _signed_out(socket: WebSocket, services: Services) -> None:
    """Return once whoever opened the socket may no longer read: signed out here or elsewhere, or the time is up."""
    while services.gatekeeper.allows(socket, ROUTES["WEBSOCKET", "/live/v1"]):
        await asyncio.sleep(_SESSION_S)


async def _send(socket: WebSocket, viewer: Viewer) -> None:
    try:
        while True:
            message = await viewer.get()
            # A viewer that takes nothing is dropped here; the kernel cuts its connection (TCP_USER_TIMEOUT).
            async with asyncio.timeout(_STUCK_S):
                if isinstance(message, str):
                    await socket.send_text(message)
                else:
                    await socket.send_bytes(message)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):
        return


async def _receive(socket: WebSocket, viewer: Viewer, services: Services) -> None:
    while True:
        event = await socket.receive()
        if event["type"] == "websocket.disconnect":
            return
        text = event.get("text")
        if text is None or len(text) > _MAX_TEXT:
            _refuse(viewer, "malformed", "messages are JSON text of at most 4096 characters")
            continue
        try:
            message = _decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            _refuse(viewer, "malformed", f"not a message: {error}")
            continue
        if isinstance(message, _Unsubscribe):
            viewer.run, viewer.heat = None, None
        elif await asyncio.to_thread(_exists, services, message.run):
            problem = _problem(message.heat)
            if problem is not None:
                _refuse(viewer, "heat", problem)
                continue
            viewer.run = message.run
            look = message.heat
            viewer.heat = None if look is None else Heat(kind=look.kind, metric=look.metric, format=look.format)
        else:
            _refuse(viewer, "unknown_run", f"there is no run {message.run[:60]!r}")


def _exists(services: Services, name: str) -> bool:
    with services.store.read() as session:
        return session.exec(select(Run.id).where(Run.name == name)).first() is not None


def _problem(look: _Look | None) -> str | None:
    if look is None:
        return None
    if look.kind not in wire.KINDS:
        return f"unknown kind {look.kind[:40]!r}; known are {', '.join(wire.KINDS)}"
    if look.metric not in METRICS:
        return f"unknown metric {look.metric[:40]!r}; known are {', '.join(METRICS)}"
    if (problem := problem_of_kind(look.metric, look.kind)) is not None:
        return problem
    if look.format != "auto" and look.format not in formats:
        return f"unknown format {look.format[:40]!r}; known are auto, {', '.join(formats)}"
    return None


def _refuse(viewer: Viewer, code: str, text: str) -> None:
    hint = 'send {"type": "subscribe", "run": NAME, "heat": {"kind", "metric", "format"} or null}'
    viewer.put(encode_json({"type": "error", **error_body(code, text, hint)}).decode())
