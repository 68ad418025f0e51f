"""How questions reach a server."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from floatscope._address import why_no_token
from floatscope._client._errors import ClientError

__all__ = ["HTTPTransport", "Reply", "Transport", "error_of"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: HTTP status, media type and body."""

    status: int
    media_type: str
    body: bytes


class Transport(Protocol):
    """Asks a server, or something in its place."""

    def get(self, path: str, query: Mapping[str, object], accept: str) -> Reply:
        """The answer to ``GET path?query``, whatever its status; ``ClientError`` if there is none."""


class HTTPTransport:
    """``server`` is an address such as ``https://floatscope.example``; ``ValueError`` if it is none."""

    def __init__(self, server: str, token: str | None, timeout_s: float) -> None:
        if not server.startswith(("http://", "https://")) or not urlsplit(server).hostname:
            raise ValueError(f"server {server!r} is no address; write http://HOST:PORT or https://HOST")
        if token and (wrong := why_no_token(token)):
            raise ValueError(f"token: {wrong} (here or in FLOATSCOPE_TOKEN)")
        self._server = server.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        # A proxy that the environment names has no business with this machine's own server, nor with its token.
        own = [urllib.request.ProxyHandler({})] if _is_own(urlsplit(server).hostname or "") else []
        self._opener = urllib.request.build_opener(_NoRedirect, *own)

    def get(self, path: str, query: Mapping[str, object], accept: str) -> Reply:
        """As ``Transport`` says."""
        address = f"{self._server}{path}?{urlencode(query)}" if query else self._server + path
        request = urllib.request.Request(address, headers={"Accept": accept})  # noqa: S310 - http or https, see above
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return Reply(response.status, response.headers.get_content_type(), response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers.get_content_type(), error.read())
        except TimeoutError as error:
            raise self._unreachable(f"no answer within {self._timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise self._unreachable(f"no answer within {self._timeout_s:g} s") from error
            raise self._unreachable(getattr(reason, "strerror", None) or str(reason)) from error

    def _unreachable(self, reason: str) -> ClientError:
        return ClientError(
            "unreachable",
            f"cannot reach a floatscope server at {self._server}: {reason}",
            "start it with `floatscope server`, or give the address of another",
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A floatscope server redirects nobody; whoever does must not be given the token."""

    def redirect_request(self, *_: object) -> None:
        return None


def _is_own(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def error_of(reply: Reply) -> ClientError:
    """What the server says in place of an answer."""
    try:
        error = json.loads(reply.body)["error"]
        return ClientError(str(error["code"]), str(error["message"]), str(error.get("hint", "")), reply.status)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ClientError(
            "no_answer", f"answered {reply.status}", "is that the address of a floatscope server?", reply.status
        )
