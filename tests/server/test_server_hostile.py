"""Requests that no client of ours makes: an answer below 500, in the shape of every error."""

from __future__ import annotations

import itertools
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from sqlmodel import Session

if TYPE_CHECKING:
    from tests.server.conftest import Reply, Running

_NUMBERS = ("9223372036854775808", "9" * 30, "-1", "0", "1.5", "\u0663")


_PATHS = (
    ("POST", "/api/v1/alerts/{}/acknowledge"),
    ("DELETE", "/api/v1/endpoints/{}"),
    ("POST", "/api/v1/endpoints/{}/test"),
    ("POST", "/api/v1/endpoints/{}/secret"),
    ("POST", "/api/v1/deliveries/{}/redeliver"),
    ("GET", "/api/v1/deliveries?endpoint={}"),
    ("GET", "/api/v1/alerts?limit={}"),
    ("GET", "/api/v1/runs/none/heatmap?rows={}"),
    ("GET", "/api/v1/runs/none/heatmap?from={}"),
    ("GET", "/api/v1/runs/none/scalars?points={}"),
    ("GET", "/api/v1/runs/none/devices?seconds={}"),
)


def test_numbers(server: Running, http: Callable[..., Reply]) -> None:
    headers = {"content-type": "application/json"}
    for (method, path), number in itertools.product(_PATHS, _NUMBERS):
        body = b"{}" if path.endswith("secret") else None
        url = server.url + path.format(urllib.parse.quote(number))
        reply = http(url, method=method, body=body, headers=headers)
        assert reply.status in {404, 422}, (method, path, number)
        assert set(reply.json["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "http://a]b[", "null", "file://", "http://127.0.0.1:99999999"]
)
def test_origins(server: Running, http: Callable[..., Reply], origin: str) -> None:
    reply = http(f"{server.url}/api/v1/session", method="DELETE", headers={"origin": origin})
    assert (reply.status, reply.json["error"]["code"]) == (403, "origin")


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "%00", "%F0%9F%98%80" * 100, "..%2f..%2fetc/passwd"])
def test_files(server: Running, name: str) -> None:
    reply = server.get(f"/static/{name}")
    assert (reply.status, reply.json["error"]["code"]) == (404, "not_found")


def test_a_mistake_of_ours_has_the_shape_too(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Session) -> None:
        raise LookupError

    monkeypatch.setattr("floatscope_server.query.routes.run_list", broken)
    reply = server.get("/api/v1/runs")
    assert (reply.status, reply.json["error"]["code"]) == (500, "internal")
