"""Nobody in who should not be."""

from __future__ import annotations

import gzip
import re
import secrets
import socket
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
from fastapi import APIRouter
from sqlmodel import select
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from floatscope import wire
from floatscope_server import app as application
from floatscope_server.access import Session, Token
from floatscope_server.app import ROUTERS, create_app
from floatscope_server.auth import MESSAGES, ROUTES, unclassified
from floatscope_server.live_socket import LIVE_MESSAGES
from floatscope_server.pagefiles import PageFiles
from floatscope_server.security import CONTENT_SECURITY_POLICY
from floatscope_server.settings import Settings
from floatscope_server.tokens import SCOPES, read_token_file

pytestmark = pytest.mark.engines("sqlite")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.server.conftest import Clock, MakeAgent, Reply, Running, Start


def _all_routes() -> set[tuple[str, str]]:
    found = set()
    for router in ROUTERS:
        for route in router.routes:
            methods = getattr(route, "methods", None) or {"WEBSOCKET"}
            found |= {(method, route.path) for method in methods}  # type: ignore[attr-defined]
    return found


def test_every_route_is_classified_and_nothing_else_is() -> None:
    assert unclassified(ROUTERS) == []
    assert _all_routes() == set(ROUTES)
    assert set(ROUTES.values()) <= {"open", *SCOPES}


def test_every_message_of_a_socket_is_classified_and_nothing_else_is() -> None:
    agent_messages = {
        ("/ingest/v1", str(msgspec.inspect.type_info(kind).tag))  # type: ignore[attr-defined]
        for kind in (wire.Hello, wire.Block, wire.Gap, wire.Beat, wire.Bye)
    }
    assert agent_messages | {("/live/v1", name) for name in LIVE_MESSAGES} == set(MESSAGES)
    assert all(MESSAGES[path, name] == ROUTES["WEBSOCKET", path] for path, name in MESSAGES)


def test_a_route_without_a_scope_stops_the_server_from_being_built(monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()
    router.add_api_route("/new", lambda: None, methods=["POST"])
    monkeypatch.setattr(application, "ROUTERS", (*ROUTERS, router))
    with pytest.raises(RuntimeError, match=r"\('POST', '/new'\)"):
        create_app(Settings())


@pytest.fixture
def guarded(start: Start, tmp_path: Path) -> tuple[Running, dict[str, str]]:
    """A server with a token file, and its tokens by scope."""
    path = tmp_path / "tokens"
    tokens, fresh = read_token_file(path)
    assert fresh
    return start(token_file=path, data=tmp_path / "guarded"), dict(tokens)


_SAMPLE = {"{run}": "run", "{layer:path}": "a", "{path:path}": "main.js"}


def _concrete(path: str) -> str:
    for template, value in _SAMPLE.items():
        path = path.replace(template, value)
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


def test_each_route_lets_in_the_scopes_of_the_table_and_no_other(
    guarded: tuple[Running, dict[str, str]], http: Callable[..., Reply]
) -> None:
    server, tokens = guarded
    for (method, path), needed in ROUTES.items():
        if method == "WEBSOCKET":
            continue
        for scope in (None, *SCOPES):
            headers = {} if scope is None else {"Authorization": f"Bearer {tokens[scope]}"}
            reply = http(server.url + _concrete(path), method=method, headers=headers)
            allowed = needed == "open" or scope in {needed, "admin"}
            refused = reply.status == 401 and reply.json["error"]["code"] == "unauthorized"
            assert refused != allowed, (method, path, scope, reply.status)
            if refused:
                assert "FLOATSCOPE_TOKEN" in reply.json["error"]["hint"]


def test_each_socket_too(guarded: tuple[Running, dict[str, str]]) -> None:
    server, tokens = guarded
    for (method, path), needed in ROUTES.items():
        if method != "WEBSOCKET":
            continue
        for scope in (None, *SCOPES):
            headers = {} if scope is None else {"Authorization": f"Bearer {tokens[scope]}"}
            status = _status_of_socket(f"ws://{server.address}{path}", headers)
            assert status == (101 if scope in {needed, "admin"} else 401), (path, scope)


def _status_of_socket(url: str, headers: dict[str, str]) -> int:
    try:
        with connect(url, additional_headers=headers, compression=None):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def test_tokens_are_hashed_at_rest_and_the_file_is_private(
    guarded: tuple[Running, dict[str, str]], tmp_path: Path
) -> None:
    server, tokens = guarded
    assert stat.S_IMODE((tmp_path / "tokens").stat().st_mode) == 0o600
    with server.services.store.read() as session:
        rows = session.exec(select(Token)).all()
    assert sorted(row.scope for row in rows) == sorted(SCOPES)
    server.stop()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "guarded").iterdir())
    assert not any(token.encode() in stored for token in tokens.values())


def test_a_token_becomes_a_cookie_that_scripts_cannot_read(
    guarded: tuple[Running, dict[str, str]], http: Callable[..., Reply]
) -> None:
    server, tokens = guarded
    url = f"{server.url}/api/v1/session"
    assert server.json("/api/v1/session") == {"mode": "token", "scope": None}

    def sign_in(token: str) -> Reply:
        headers = {"content-type": "application/json"}
        return http(url, method="POST", body=msgspec.json.encode({"token": token}), headers=headers)

    for wrong in ("", "x" * 43, tokens["ingest"]):
        reply = sign_in(wrong)
        assert reply.status == 401
        assert "set-cookie" not in reply.headers
    reply = sign_in(tokens["read"])
    assert reply.status == 204
    attributes = reply.headers["set-cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=strict" in attributes
    cookie = reply.headers["set-cookie"].partition(";")[0]
    assert server.get("/api/v1/session", cookie=cookie).json == {"mode": "token", "scope": "read"}
    assert server.get("/api/v1/runs", cookie=cookie).status == 200
    assert server.get("/api/v1/endpoints", cookie=cookie).status in {401, 404}
    with connect(f"ws://{server.address}/live/v1", additional_headers={"Cookie": cookie}, compression=None):
        pass
    value = cookie.partition("=")[2]
    with server.services.store.read() as session:
        assert value not in {row.hash for row in session.exec(select(Session))}
    assert http(url, method="DELETE", headers={"cookie": cookie}).status == 204
    assert server.get("/api/v1/runs", cookie=cookie).status == 401


def test_sessions_survive_a_restart_and_end_with_their_token(
    start: Start, tmp_path: Path, http: Callable[..., Reply]
) -> None:
    path = tmp_path / "tokens"
    tokens = dict(read_token_file(path)[0])
    server = start(token_file=path)
    body = msgspec.json.encode({"token": tokens["admin"]})
    reply = http(f"{server.url}/api/v1/session", method="POST", body=body, headers={"content-type": "application/json"})
    cookie = reply.headers["set-cookie"].partition(";")[0]
    server.stop()
    again = start(token_file=path)
    assert again.get("/api/v1/session", cookie=cookie).json["scope"] == "admin"
    again.stop()
    path.write_text(f"admin {secrets.token_urlsafe(32)}\n")
    rotated = start(token_file=path)
    assert rotated.get("/api/v1/session", cookie=cookie).json["scope"] is None
    assert rotated.get("/api/v1/runs", authorization=f"Bearer {tokens['admin']}").status == 401


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no token"),
        ("admin short\n", "too short"),
        ("admin " + "a" * 64 + "\n", "too short"),
        ("root " + "abcdefghij" * 4, "SCOPE TOKEN"),
        ("just-a-token-without-scope-1234567890abcdef", "SCOPE TOKEN"),
    ],
)
def test_a_bad_token_file_names_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_token_file(path)
    assert "short" not in content or "short\n" not in str(caught.value).partition(":")[2]


def test_a_foreign_host_name_is_refused(server: Running) -> None:
    """DNS rebinding: a page whose name was made to point here is still another site."""
    for host in ("evil.example", "evil.example:6160", "127.0.0.1.evil.example", "a@127.0.0.1", "", "[", "127.0.0.1:x"):
        assert server.get("/api/v1/runs", host=host).status == 403, host
    for host in ("localhost", "127.0.0.1", "[::1]", "localhost:1", "LOCALHOST"):
        assert server.get("/api/v1/runs", host=host).status == 200, host


def test_allowed_hosts_are_let_in(start: Start) -> None:
    server = start(allowed_hosts=("gpu.example",))
    assert server.get("/api/v1/runs", host="gpu.example").status == 200
    assert server.get("/api/v1/runs", host="other.example").status == 403


def test_a_foreign_origin_on_a_socket_is_403(server: Running) -> None:
    for path in ("/live/v1", "/ingest/v1"):
        url = f"ws://{server.address}{path}"
        for origin in ("http://evil.example", "null", "file://", "http://127.0.0.1:1", "https://localhost"):
            assert _status_of_socket(url, {"Origin": origin}) == 403, (path, origin)
        assert _status_of_socket(url, {"Origin": f"http://{server.address}"}) == 101
        assert _status_of_socket(url, {}) == 101


def test_no_page_from_elsewhere_changes_anything(server: Running, http: Callable[..., Reply]) -> None:
    for method, path in ROUTES:
        if method in {"POST", "PUT", "DELETE"}:
            reply = http(server.url + _concrete(path), method=method, headers={"Origin": "http://evil.example"})
            assert reply.status == 403, (method, path)
            assert reply.json["error"]["code"] == "origin"


def test_every_response_carries_the_policy(server: Running) -> None:
    for path in ("/", "/healthz", "/metrics", "/docs", "/openapi.json", "/api/v1/runs", "/nothing", "/static/none"):
        headers = server.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY, path
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    refused = server.get("/", host="evil.example").headers
    assert refused["content-security-policy"] == CONTENT_SECURITY_POLICY


def test_compressed_and_long_bodies_are_refused(server: Running) -> None:
    for header, status in (("Content-Encoding: gzip\r\nContent-Length: 1", 415), ("Content-Length: 2097153", 413)):
        with _raw(server) as raw:
            raw.sendall(f"POST /ingest/v1 HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode())
            assert raw.recv(100).startswith(f"HTTP/1.1 {status}".encode())


def _raw(server: Running) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_a_long_body_without_a_length_is_refused_as_it_comes(server: Running) -> None:
    with _raw(server) as raw:
        raw.sendall(b"POST /ingest/v1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        try:
            for _ in range(64):
                raw.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_a_long_chunked_body_is_413_on_json_routes_too(start: Start) -> None:
    server = start(max_body_bytes=1000)
    for path in ("/api/v1/session", "/api/v1/endpoints"):
        with _raw(server) as raw:
            raw.sendall(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
            )
            raw.sendall(b"7d0\r\n" + b" " * 2000 + b"\r\n0\r\n\r\n")
            answer = b""
            while b"hint" not in answer:
                part = raw.recv(4096)
                assert part, answer
                answer += part
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"body_too_large"' in answer


@pytest.mark.parametrize("how", ["signed out", "expired"])
def test_a_live_socket_ends_with_its_session(
    start: Start,
    tmp_path: Path,
    http: Callable[..., Reply],
    clock: Clock,
    wait_for: Callable[[Callable[[], object], str], None],
    how: str,
) -> None:
    server = start(token_file=tmp_path / "tokens", clock=clock)
    token = dict(line.split() for line in (tmp_path / "tokens").read_text().splitlines())["read"]
    url = f"{server.url}/api/v1/session"
    signed_in = http(
        url,
        method="POST",
        body=msgspec.json.encode({"token": token}),
        headers={"content-type": "application/json"},
    )
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    with connect(f"ws://{server.address}/live/v1", additional_headers={"Cookie": cookie}, compression=None) as socket:
        assert "welcome" in str(socket.recv(timeout=60))
        if how == "signed out":
            assert http(url, method="DELETE", headers={"cookie": cookie}).status == 204
        else:
            clock.now += 31 * 86400
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    wait_for(lambda: not server.services.gatekeeper._sessions, "the session to be forgotten")
    wait_for(lambda: not server.services.live.viewers, "the viewer to be gone")


def test_files_outside_of_the_page_are_not_served(server: Running) -> None:
    for path in ("../app.py", "..%2f..%2fpyproject.toml", "%2e%2e/app.py", "/etc/passwd", ".git/config", "a%00b", ""):
        assert server.get(f"/static/{path}").status == 404, path


def test_plotly_is_served_from_its_package_and_cached(server: Running) -> None:
    reply = server.get("/static/plotly.min.js")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/javascript")
    assert len(reply.body) > 1_000_000
    again = server.get("/static/plotly.min.js", **{"if-none-match": reply.headers["etag"]})
    assert again.status == 304
    assert again.body == b""


def test_files_of_a_version_are_kept_for_ever(server: Running) -> None:
    entry = server.get("/")
    assert entry.headers["cache-control"] == "no-cache"
    found = re.findall(r'="(/static/[^"]*)"', entry.body.decode())
    (folder,) = {"/".join(address.split("/")[:3]) + "/" for address in found}
    assert re.fullmatch(r"/static/@[0-9a-f]{16}/", folder)
    for address in (*found[:3], f"{folder}plotly.min.js"):
        assert server.get(address).headers["cache-control"] == "public, max-age=31536000, immutable", address
    # A page that was opened before an upgrade goes on, with what is there now.
    for address in ("/static/main.js", "/static/@0123456789abcdef/main.js"):
        assert server.get(address).headers["cache-control"] == "no-cache", address
        assert server.get(address).body == server.get(f"{folder}main.js").body


def test_files_are_compressed_for_those_who_can_read_that(server: Running) -> None:
    plain = server.get("/static/main.js")
    zipped = server.get("/static/main.js", **{"accept-encoding": "gzip, br"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.headers["vary"] == "accept-encoding"
    assert gzip.decompress(zipped.body) == plain.body
    assert zipped.headers["etag"] != plain.headers["etag"]
    assert len(zipped.body) < len(plain.body)
    # Less than a packet.
    assert "content-encoding" not in server.get("/static/icon.svg", **{"accept-encoding": "gzip"}).headers


def test_what_has_been_edited_has_another_version(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "page.js").write_text("1")
    (tmp_path / "index.html").write_text('<script src="/static/view/page.js">')
    (tmp_path / "library.js").write_text("library")
    files = PageFiles(tmp_path, {"its-name.js": tmp_path / "library.js"})
    first = files.take()
    assert set(first.files) == {"index.html", "view/page.js", "library.js", "its-name.js"}
    assert first.files["index.html"].data.decode() == f'<script src="/static/@{first.version}/view/page.js">'
    assert files.take() is first
    (tmp_path / "view" / "page.js").write_text("22")
    second = files.take()
    assert second.version != first.version
    assert second.named(f"@{second.version}/view/page.js") == (second.files["view/page.js"], True)
    assert second.named(f"@{first.version}/view/page.js") == (second.files["view/page.js"], False)
    assert second.named("../page.js") == (None, False)


def test_the_style_sheets_of_the_page_are_one_answer(tmp_path: Path) -> None:
    (tmp_path / "style").mkdir()
    for name, text in (("one", "a { color: red }\n"), ("two", "a { color: blue }\n"), ("unused", "b {}\n")):
        (tmp_path / "style" / f"{name}.css").write_text(text)
    link = '<link rel="stylesheet" href="/static/style/{}.css" />\n'
    head = f'<title>x</title>\n  {link.format("two")}  <script src="/static/a.js">\n  {link.format("one")}</html>'
    (tmp_path / "index.html").write_text(head)
    found = PageFiles(tmp_path, {}).take()
    at = f"/static/@{found.version}"
    joined = f'<title>x</title>\n  <link rel="stylesheet" href="{at}/style.css" />\n  <script src="{at}/a.js">\n</html>'
    assert found.files["index.html"].data.decode() == joined
    # Later rules win, so their order is that of the page.
    assert found.files["style.css"].data == b"a { color: blue }\na { color: red }\n"
    assert found.files["style.css"].media_type == "text/css"


def test_the_description_is_complete_and_needs_nothing_from_elsewhere(server: Running) -> None:
    document = server.json("/openapi.json")
    described = {(m.upper(), path) for path, methods in document["paths"].items() for m in methods}
    expected = {
        (method, path.replace(":path", ""))
        for method, path in ROUTES
        if method != "WEBSOCKET" and path not in {"/", "/static/{path:path}", "/docs", "/openapi.json"}
    }
    assert described == expected
    page = server.get("/docs").body.decode()
    assert "<script" not in page
    assert "https://" not in page
    assert all(path in page for _, path in described)


def test_an_ingest_token_cannot_be_had_by_guessing(guarded: tuple[Running, dict[str, str]], agent: MakeAgent) -> None:
    server, tokens = guarded
    one = agent(connected=False, address=server.address, token=tokens["ingest"][:-1])
    with pytest.raises(InvalidStatus):
        one.connect()
    one.token = tokens["ingest"]
    assert isinstance(one.connect(), wire.Welcome)
