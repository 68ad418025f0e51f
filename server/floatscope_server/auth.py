"""Who may do what: tokens, sessions, and the one table that classifies every route and socket message."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from fastapi import APIRouter
from fastapi.routing import APIRoute, APIWebSocketRoute
from sqlmodel import Session as DatabaseSession
from sqlmodel import col, delete, select
from starlette.requests import HTTPConnection

from floatscope_server.access import Session, Token
from floatscope_server.database import StoreError, utc
from floatscope_server.settings import Settings
from floatscope_server.store import Store
from floatscope_server.tokens import read_token_file

__all__ = ["COOKIE", "MESSAGES", "ROUTES", "Gatekeeper", "unclassified"]

COOKIE = "floatscope_session"
SESSION_DAYS = 30

ROUTES: Mapping[tuple[str, str], str] = {
    ("GET", "/"): "open",
    ("GET", "/static/{path:path}"): "open",
    ("GET", "/docs"): "open",
    ("GET", "/openapi.json"): "open",
    ("GET", "/healthz"): "open",
    ("GET", "/metrics"): "read",
    ("GET", "/api/v1/session"): "open",
    ("POST", "/api/v1/session"): "open",
    ("DELETE", "/api/v1/session"): "open",
    ("GET", "/api/v1/runs"): "read",
    ("GET", "/api/v1/runs/{run}"): "read",
    ("GET", "/api/v1/runs/{run}/scalars"): "read",
    ("GET", "/api/v1/runs/{run}/heatmap"): "read",
    ("GET", "/api/v1/runs/{run}/layers/{layer:path}/series"): "read",
    ("GET", "/api/v1/runs/{run}/series"): "read",
    ("GET", "/api/v1/runs/{run}/latest"): "read",
    ("GET", "/api/v1/runs/{run}/tail"): "read",
    ("GET", "/api/v1/compare"): "read",
    ("GET", "/api/v1/runs/{run}/layers/{layer:path}/histogram"): "read",
    ("GET", "/api/v1/runs/{run}/histogram"): "read",
    ("GET", "/api/v1/runs/{run}/summaries"): "read",
    ("GET", "/api/v1/runs/{run}/devices"): "read",
    ("GET", "/api/v1/runs/{run}/operand"): "read",
    ("GET", "/api/v1/runs/{run}/operands"): "read",
    ("GET", "/api/v1/runs/{run}/scaler"): "read",
    ("GET", "/api/v1/runs/{run}/step_times"): "read",
    ("GET", "/api/v1/runs/{run}/alerts"): "read",
    ("GET", "/api/v1/runs/{run}/report"): "read",
    ("POST", "/api/v1/runs/{run}/focus"): "admin",
    ("GET", "/api/v1/runs/{run}/dumps"): "read",
    ("GET", "/api/v1/runs/{run}/dumps/{dump}"): "read",
    ("PATCH", "/api/v1/runs/{run}"): "admin",
    ("DELETE", "/api/v1/runs/{run}"): "admin",
    ("GET", "/api/v1/retention"): "read",
    ("PUT", "/api/v1/retention"): "admin",
    ("DELETE", "/api/v1/retention"): "admin",
    ("GET", "/api/v1/runs/{run}/retention"): "read",
    ("PUT", "/api/v1/runs/{run}/retention"): "admin",
    ("DELETE", "/api/v1/runs/{run}/retention"): "admin",
    ("GET", "/api/v1/alerts"): "read",
    ("POST", "/api/v1/alerts/{alert_id}/acknowledge"): "admin",
    ("POST", "/api/v1/alerts/{alert_id}/resolve"): "admin",
    ("GET", "/api/v1/rules"): "read",
    ("PUT", "/api/v1/rules"): "admin",
    ("GET", "/api/v1/rules/presets"): "read",
    ("GET", "/api/v1/rules/settings"): "read",
    ("GET", "/api/v1/runs/{run}/rules"): "read",
    ("GET", "/api/v1/runs/{run}/rules/settings"): "read",
    ("PUT", "/api/v1/runs/{run}/rules"): "admin",
    ("POST", "/api/v1/runs/{run}/rules/preview"): "read",
    ("GET", "/api/v1/silences"): "read",
    ("POST", "/api/v1/silences"): "admin",
    ("DELETE", "/api/v1/silences/{silence_id}"): "admin",
    ("GET", "/api/v1/endpoints"): "admin",
    ("POST", "/api/v1/endpoints"): "admin",
    ("GET", "/api/v1/endpoints/types"): "admin",
    ("PATCH", "/api/v1/endpoints/{endpoint_id}"): "admin",
    ("DELETE", "/api/v1/endpoints/{endpoint_id}"): "admin",
    ("POST", "/api/v1/endpoints/{endpoint_id}/secret"): "admin",
    ("POST", "/api/v1/endpoints/{endpoint_id}/test"): "admin",
    ("GET", "/api/v1/deliveries"): "read",
    ("POST", "/api/v1/deliveries/{delivery_id}/redeliver"): "admin",
    ("GET", "/api/v1/audit"): "admin",
    ("WEBSOCKET", "/live/v1"): "read",
    ("WEBSOCKET", "/ingest/v1"): "ingest",
    ("POST", "/ingest/v1"): "ingest",
}
"""The scope that each route needs; "open" needs none."""

MESSAGES: Mapping[tuple[str, str], str] = {
    ("/live/v1", "subscribe"): "read",
    ("/live/v1", "unsubscribe"): "read",
    ("/ingest/v1", "hello"): "ingest",
    ("/ingest/v1", "block"): "ingest",
    ("/ingest/v1", "gap"): "ingest",
    ("/ingest/v1", "beat"): "ingest",
    ("/ingest/v1", "bye"): "ingest",
}
"""The scope that each message a client can send on a socket needs."""


def unclassified(routers: Iterable[APIRouter]) -> list[tuple[str, str]]:
    """Routes that ``ROUTES`` does not know."""
    found: list[tuple[str, str]] = []
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIWebSocketRoute):
                found.append(("WEBSOCKET", route.path))
            else:
                assert isinstance(route, APIRoute)
                found += [(method, route.path) for method in sorted(route.methods or ())]
    return [key for key in found if key not in ROUTES]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grant:
    scope: str
    until: float
    token: str


class Gatekeeper:
    """Checks tokens and sessions. Without a token file everybody who can connect may do everything."""

    def __init__(self, store: Store, settings: Settings, *, clock: Callable[[], float]) -> None:
        self.mode = "local" if settings.token_file is None else "token"
        self._store = store
        self._settings = settings
        self._clock = clock
        self._tokens: list[tuple[str, str]] = []
        self._sessions: dict[str, _Grant] = {}

    def start(self) -> None:
        """Bring the stored hashes in line with the token file."""
        if self._settings.token_file is None:
            return
        try:
            tokens, _ = read_token_file(self._settings.token_file)
        except ValueError as error:
            raise StoreError(str(error)) from error
        self._tokens = [(scope, _digest(token)) for scope, token in tokens]
        for row in self._store.write(self._synchronise):
            self._sessions[row.hash] = _Grant(scope=row.scope, until=row.expires_at.timestamp(), token=row.token_hash)

    def _synchronise(self, session: DatabaseSession) -> list[Session]:
        now = utc(self._clock())
        hashes = {digest for _, digest in self._tokens}
        known = set(session.exec(select(Token.hash)).all())
        session.execute(delete(Token).where(col(Token.hash).not_in(hashes)))
        session.add_all(
            Token(scope=scope, hash=digest, created_at=now) for scope, digest in self._tokens if digest not in known
        )
        # A session ends with the token that opened it.
        session.execute(
            delete(Session).where((col(Session.token_hash).not_in(hashes)) | (col(Session.expires_at) < now))
        )
        return list(session.exec(select(Session)).all())

    def scope_of(self, connection: HTTPConnection) -> str | None:
        """The scope that a request shows: by bearer token, else by session cookie, else none."""
        if self.mode == "local":
            return "admin"
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._scope_of_token(token.strip())
        cookie = connection.cookies.get(COOKIE)
        digest = _digest(cookie) if cookie else ""
        grant = self._sessions.get(digest)
        if grant is None:
            return None
        if grant.until <= self._clock():
            self._sessions.pop(digest, None)
            return None
        return grant.scope

    def actor(self, connection: HTTPConnection) -> str:
        """Who asks, for the audit log: a token, or the one that opened the session, by the first digits of its hash."""
        if self.mode == "local":
            return "local"
        kind, _, token = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return f"token {_digest(token.strip())[:12]}"
        grant = self._sessions.get(_digest(connection.cookies.get(COOKIE, "")))
        return "nobody" if grant is None else f"token {grant.token[:12]}"

    def _scope_of_token(self, token: str) -> str | None:
        shown = _digest(token)
        found = None
        for scope, digest in self._tokens:
            # Every digest is compared, each in constant time.
            if hmac.compare_digest(shown, digest):
                found = scope
        return found

    def allows(self, connection: HTTPConnection, needed: str) -> bool:
        """Whether the request may use what needs the scope ``needed``."""
        scope = self.scope_of(connection)
        return needed == "open" or scope == "admin" or (scope is not None and scope == needed)

    def open_session(self, token: str) -> tuple[str, str] | None:
        """(cookie, scope) of a new session for a read or admin token; None if it is neither."""
        scope = self._scope_of_token(token)
        if scope not in {"read", "admin"}:
            return None
        cookie = secrets.token_urlsafe(32)
        now = utc(self._clock())
        row = Session(
            hash=_digest(cookie),
            token_hash=_digest(token),
            scope=scope,
            created_at=now,
            expires_at=now + timedelta(days=SESSION_DAYS),
        )
        grant = _Grant(scope=scope, until=row.expires_at.timestamp(), token=row.token_hash)
        digest = row.hash

        def write(session: DatabaseSession) -> None:
            session.execute(delete(Session).where(col(Session.expires_at) < now))
            session.add(row)

        self._store.write(write)
        ended = [known for known, other in tuple(self._sessions.items()) if other.until <= now.timestamp()]
        for known in ended:
            self._sessions.pop(known, None)
        self._sessions[digest] = grant
        return cookie, scope

    def close_session(self, connection: HTTPConnection) -> None:
        """End the session of the request's cookie."""
        cookie = connection.cookies.get(COOKIE)
        digest = _digest(cookie) if cookie else ""
        if self._sessions.pop(digest, None) is not None:
            self._store.write(lambda session: session.execute(delete(Session).where(col(Session.hash) == digest)))
