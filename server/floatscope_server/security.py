"""What every request must pass and every response carries."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from floatscope_server.auth import ROUTES
from floatscope_server.responses import JSONText, Refusal
from floatscope_server.services import services_of
from floatscope_server.settings import Settings

__all__ = ["CONTENT_SECURITY_POLICY", "SecurityMiddleware", "admit_socket", "authorize"]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


async def authorize(connection: HTTPConnection) -> None:
    """Dependency of every route: the request must have the scope that ``ROUTES`` names for it. It asks memory only."""
    if connection.scope["type"] != "http":
        return  # sockets are admitted by ``admit_socket``, which can refuse before the upgrade
    assert isinstance(connection, Request)
    route = connection.scope["route"]
    if not services_of(connection).gatekeeper.allows(connection, ROUTES[connection.method, route.path]):
        raise _no_scope(ROUTES[connection.method, route.path])


def _no_scope(needed: str) -> Refusal:
    return Refusal(
        401,
        "unauthorized",
        f"this needs a token with the scope {needed}",
        "sign in with a token from the server's token file; commands and floatscope.Client take it from "
        "FLOATSCOPE_TOKEN, a request sends it as `Authorization: Bearer TOKEN`",
    )


async def admit_socket(socket: WebSocket, path: str) -> bool:
    """Whether ``socket`` may be accepted; a refused one has been answered 401."""
    needed = ROUTES["WEBSOCKET", path]
    if services_of(socket).gatekeeper.allows(socket, needed):
        return True
    refusal = _no_scope(needed)
    await socket.send_denial_response(JSONText(refusal.detail, status_code=refusal.status_code))
    return False


class SecurityMiddleware:
    """Host, Origin and body size are checked before anything else; security headers go on every response."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._allowed = frozenset(name.lower() for name in settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        guarded_send = _with_headers(send)
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _deny(refusal, scope, receive, guarded_send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, guarded_send)
            return
        await self._app(scope, self._bounded(receive), guarded_send)

    def _bounded(self, receive: Receive) -> Receive:
        received = 0

        async def wrapped() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._settings.max_body_bytes:
                # An HTTPException: FastAPI makes 400 of anything else that is raised while it reads a body.
                raise self._too_large()
            return message

        return wrapped

    def _too_large(self) -> Refusal:
        limit = self._settings.max_body_bytes
        return Refusal(413, "body_too_large", f"the body is longer than {limit} bytes", "send less at once")

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        if not self._is_host(host):
            return Refusal(
                403,
                "host",
                "this server does not answer under that host name",
                "open it as http://127.0.0.1:PORT or http://localhost:PORT, or start it with --allowed-host NAME",
            )
        changing = scope["type"] == "websocket" or scope["method"] not in _SAFE
        if changing and not self._is_origin(headers.get("origin"), host):
            return Refusal(
                403,
                "origin",
                "a page from elsewhere may not do this",
                "open the dashboard of this server itself; behind a proxy start it with --allowed-host NAME",
            )
        if headers.get("content-encoding", "identity") != "identity":
            return Refusal(415, "encoding", "compressed bodies are not taken", "send the body without encoding")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_body_bytes:
            return self._too_large()
        return None

    def _is_host(self, host: str) -> bool:
        name = _name(host)
        if name is None:
            return False
        if name in self._allowed:
            return True
        if not self._settings.loopback:
            # Listening for others, a token is what protects; names are checked once some are listed.
            return not self._allowed or _is_loopback(name)
        return _is_loopback(name)

    def _is_origin(self, origin: str | None, host: str) -> bool:
        if origin is None:
            return True  # no browser
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in {"http", "https"}:
            return False
        return parts.netloc.lower() == host.lower() or _name(parts.netloc) in self._allowed


def _name(host: str) -> str | None:
    """The host name of a Host header, without port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == host and not parts.username else None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] in {"http.response.start", "websocket.http.response.start"}:
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return wrapped


async def _deny(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    response = JSONText(refusal.detail, status_code=refusal.status_code)
    if scope["type"] == "http":
        await response(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).send_denial_response(response)
