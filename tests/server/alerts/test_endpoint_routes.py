"""Endpoints of every kind over HTTP: made, shown without their secrets, changed, tested; and the audit log."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floatscope_server.alerts.receivers import CHATS, TYPES
from floatscope_server.alerts.receivers.targets import Targets, read_targets

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build, Got, Receiver
    from tests.server.conftest import MakeAgent, Reply, Running, Start

Call = Callable[..., "Reply"]
pytestmark = pytest.mark.engines("sqlite")
SECRET = "SECdo-not-tell"


@pytest.fixture
def targets(tmp_path: Path, receiver: Receiver) -> Path:
    path = tmp_path / "targets"
    path.write_text(f"# mine\n\noncall json://127.0.0.1:{receiver.port}/do-not-tell\n")
    return path


@pytest.fixture
def server(start: Start, targets: Path) -> Running:
    return start(webhook_allow=("127.0.0.1",), apprise_file=targets)


def _good(got: Got) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b'{"code":0,"errcode":0}'


@pytest.mark.parametrize("type_", TYPES)
def test_from_making_to_a_test_message(call: Call, receiver: Receiver, wait: Callable[..., None], type_: str) -> None:
    receiver.answer = _good
    signed = type_ in CHATS and CHATS[type_].secret
    url = "oncall" if type_ == "apprise" else f"http://127.0.0.1:{receiver.port}/do-not-tell/abcd"
    wanted = {"type": type_, "url": url, "language": "zh", **({"secret": SECRET} if signed else {})}
    made = call("POST", "/api/v1/endpoints", wanted)
    assert made.status == 201, made.body
    assert made.json["signed"] == (signed or type_ == "generic")
    assert (made.json["secret"] is None) == (type_ != "generic")
    sent = call("POST", f"/api/v1/endpoints/{made.json['id']}/test")
    assert sent.status == 202
    wait(lambda: [d["state"] for d in call("GET", "/api/v1/deliveries").json] == ["ok"])
    (got,) = receiver.requests
    if type_ != "generic":
        assert "测试" in json.dumps(json.loads(got.body), ensure_ascii=False)
    assert ("sign=" in got.path) == (type_ == "dingtalk")
    lists = b"".join(call("GET", path).body for path in ("/api/v1/endpoints", "/api/v1/deliveries", "/api/v1/audit"))
    if type_ != "generic":
        assert b"do-not-tell" not in lists
        assert b"do-not-tell" not in made.body
    assert [line["action"] for line in call("GET", "/api/v1/audit").json] == ["endpoint.test", "endpoint.add"]


def test_a_change_leaves_the_rest(call: Call, receiver: Receiver) -> None:
    made = call("POST", "/api/v1/endpoints", {"type": "slack", "url": receiver.url, "kinds": ["loss_zero"]}).json
    path = f"/api/v1/endpoints/{made['id']}"
    changed = call("PATCH", path, {"min_severity": "critical", "language": "zh"})
    assert changed.status == 200
    assert changed.json == {k: v for k, v in made.items() if k != "secret"} | {
        "min_severity": "critical",
        "language": "zh",
    }
    assert call("PATCH", path, {"url": "http://10.0.0.1/"}).json["error"]["code"] == "forbidden_address"
    assert call("PATCH", path, {"kinds": ["no_such"]}).json["error"]["code"] == "unknown_kind"
    assert call("PATCH", path, {"type": "discord"}).status == 422
    assert call("PATCH", "/api/v1/endpoints/77", {"enabled": True}).status == 404


def test_one_that_is_disabled_gets_nothing_until_it_is_enabled(
    call: Call, receiver: Receiver, wait: Callable[..., None]
) -> None:
    receiver.answer = lambda _: (503, {"retry-after": "3600"})
    made = call("POST", "/api/v1/endpoints", {"url": receiver.url}).json
    path = f"/api/v1/endpoints/{made['id']}"
    call("POST", path + "/test")
    wait(lambda: [d["state"] for d in call("GET", "/api/v1/deliveries").json] == ["failed"])
    off = call("PATCH", path, {"enabled": False}).json
    assert (off["enabled"], off["disabled_reason"]) == (False, "disabled by hand")
    (dead,) = call("GET", "/api/v1/deliveries?state=dead").json
    assert dead["error"] == "the endpoint is disabled"
    refused = call("POST", path + "/test")
    assert (refused.status, refused.json["error"]["code"]) == (409, "endpoint_disabled")
    assert "PATCH" in refused.json["error"]["hint"]
    assert call("POST", f"/api/v1/deliveries/{dead['id']}/redeliver").status == 409
    receiver.answer = _good
    on = call("PATCH", path, {"enabled": True}).json
    assert (on["enabled"], on["disabled_reason"]) == (True, None)
    assert call("POST", f"/api/v1/deliveries/{dead['id']}/redeliver").status == 202
    wait(lambda: [d["state"] for d in call("GET", f"/api/v1/deliveries?before={dead['id'] + 1}").json] == ["ok"])
    assert call("GET", f"/api/v1/deliveries?before={dead['id']}").json == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"type": "slack", "url": "https://hooks.slack.com/x", "secret": SECRET}, "no_secret"),
        ({"type": "apprise", "url": "oncall", "secret": SECRET}, "no_secret"),
        ({"type": "apprise", "url": "json://127.0.0.1/"}, "unknown_target"),
        ({"type": "feishu", "url": "https://open.feishu.cn/x", "secret": " "}, "bad_secret"),
        ({"type": "dingtalk", "url": "dingtalk://x"}, "bad_url"),
        ({"type": "discord", "url": "http://169.254.169.254/"}, "forbidden_address"),
        ({"type": "pigeon", "url": "https://x.example/"}, "invalid"),
        ({"type": "teams", "url": "https://x.example/", "language": "tlh"}, "invalid"),
        ({"type": "teams", "url": "https://x.example/", "secrets": []}, "invalid"),
    ],
)
def test_what_cannot_be_an_endpoint(call: Call, wanted: dict[str, Any], code: str) -> None:
    reply = call("POST", "/api/v1/endpoints", wanted)
    assert (reply.status, reply.json["error"]["code"]) == (422, code)
    assert SECRET.encode() not in reply.body
    assert call("GET", "/api/v1/endpoints").json == []


def test_secrets_of_robots_are_replaced_at_once(call: Call, receiver: Receiver, wait: Callable[..., None]) -> None:
    receiver.answer = _good
    made = call("POST", "/api/v1/endpoints", {"type": "feishu", "url": receiver.url, "secret": SECRET}).json
    path = f"/api/v1/endpoints/{made['id']}"
    assert call("POST", path + "/secret", {"secret": "another"}).json["secret"] is None
    assert call("POST", path + "/secret", {}).json["signed"] is False
    call("POST", path + "/test")
    wait(lambda: len(receiver.requests) == 1)
    assert b'"sign"' not in receiver.requests[0].body


def test_the_types_are_listed(call: Call) -> None:
    found = {each["type"]: each for each in call("GET", "/api/v1/endpoints/types").json}
    assert list(found) == list(TYPES)
    assert found["apprise"]["targets"] == ["oncall"]
    assert {name for name, each in found.items() if each["signed"]} == {"generic", "feishu", "dingtalk"}
    assert found["dingtalk"]["per_minute"] == 15


def test_an_alert_is_resolved_by_hand_told_and_logged(
    build: Build, agent: MakeAgent, call: Call, receiver: Receiver, wait: Callable[..., None]
) -> None:
    receiver.answer = _good
    call("POST", "/api/v1/endpoints", {"type": "wecom", "url": receiver.url})
    one = agent(run="night")
    one.deliver(build.body(records={step: {"loss": 0.8} for step in range(10)}))
    one.deliver(build.body(records={10: {"loss": math.nan}}))
    wait(lambda: len(receiver.requests) == 1)
    (alert,) = call("GET", "/api/v1/alerts?state=firing").json
    path = f"/api/v1/alerts/{alert['id']}"
    call("POST", path + "/acknowledge")
    done = call("POST", path + "/resolve")
    assert done.status == 200
    assert (done.json["state"], done.json["resolved_reason"]) == ("resolved", "by_hand")
    assert call("POST", path + "/resolve").json == done.json
    wait(lambda: len(receiver.requests) == 2)
    assert "resolved" in json.loads(receiver.requests[1].body)["markdown"]["content"]
    one.deliver(build.body(records={11: {"loss": math.nan}}))
    wait(lambda: len(call("GET", "/api/v1/alerts?state=firing").json) == 1)
    assert call("POST", "/api/v1/alerts/77/resolve").status == 404
    call("POST", "/api/v1/silences", {"seconds": 60, "run": "night"})
    call("PUT", "/api/v1/rules", {"preset": "strict"})
    log = call("GET", "/api/v1/audit").json
    assert [(line["action"], line["actor"]) for line in log] == [
        ("rules.set", "local"),
        ("silence.add", "local"),
        ("alert.resolve", "local"),
        ("alert.acknowledge", "local"),
        ("endpoint.add", "local"),
    ]
    assert (log[2]["subject"], log[2]["detail"]) == (str(alert["id"]), {"run": "night", "kind": "nonfinite"})
    assert [line["id"] for line in call("GET", f"/api/v1/audit?before={log[1]['id']}&limit=1").json] == [log[2]["id"]]


def test_the_audit_log_tells_tokens_apart(start: Start, http: Call, tmp_path: Path) -> None:
    tokens = {name: secrets.token_hex(32) for name in ("a", "b")}
    file = tmp_path / "tokens"
    file.write_text("".join(f"admin {token}\n" for token in tokens.values()))
    server = start(data=tmp_path / "other", token_file=file)

    def silence(**headers: str) -> Reply:
        sent = {"content-type": "application/json", **headers}
        return http(server.url + "/api/v1/silences", method="POST", body=b'{"seconds": 1}', headers=sent)

    for token in tokens.values():
        assert silence(authorization=f"Bearer {token}").status == 201
    body = json.dumps({"token": tokens["a"]}).encode()
    signed_in = http(
        server.url + "/api/v1/session", method="POST", body=body, headers={"content-type": "application/json"}
    )
    assert silence(cookie=signed_in.headers["set-cookie"].partition(";")[0]).status == 201
    reply = http(server.url + "/api/v1/audit", headers={"authorization": f"Bearer {tokens['b']}"})
    actors = [line["actor"] for line in reply.json]
    assert actors[0] == actors[2] != actors[1]
    assert all(actor.startswith("token ") and token not in actor for actor in actors for token in tokens.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("oncall", "line 1 .* is not NAME ADDRESS"),
        ("a json://x/ extra", "line 1 .* is not NAME ADDRESS"),
        ("a json://x/\n\na json://do-not-tell/", "line 3 .* names 'a' again"),
    ],
)
def test_a_file_of_targets_that_is_not_sound(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "targets"
    path.write_text(text)
    with pytest.raises(ValueError, match=why) as caught:
        read_targets(path)
    assert "do-not-tell" not in str(caught.value)


def test_an_address_that_apprise_does_not_understand_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="does not understand the address of the target 'a'") as caught:
        Targets({"a": "nosuchthing://do-not-tell/"})
    assert "do-not-tell" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_targets(Path("no/such/file"))


def test_a_target_inside_that_is_not_allowed_is_not_reached(
    start: Start, targets: Path, http: Call, receiver: Receiver, wait: Callable[..., None], tmp_path: Path
) -> None:
    server = start(data=tmp_path / "other", apprise_file=targets)

    def post(path: str, body: object) -> Reply:
        headers = {"content-type": "application/json"}
        return http(server.url + path, method="POST", body=json.dumps(body).encode(), headers=headers)

    made = post("/api/v1/endpoints", {"type": "apprise", "url": "oncall"})
    post(f"/api/v1/endpoints/{made.json['id']}/test", {})
    wait(lambda: [d["state"] for d in server.json("/api/v1/deliveries")] == ["failed"])
    assert "127.0.0.1" in server.json("/api/v1/deliveries")[0]["error"]
    assert receiver.requests == []
