"""The HTTP side of alerts on a real server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook

from floatscope import wire
from floatscope_server.rules import RULES

if TYPE_CHECKING:
    from tests.server.alerts.conftest import Build, Receiver
    from tests.server.conftest import MakeAgent, Reply, Running, Start

Call = Callable[..., "Reply"]
SHAPE = {
    "id",
    "run",
    "attempt",
    "kind",
    "severity",
    "state",
    "first_step",
    "last_step",
    "since_step",
    "layer",
    "rank",
    "device",
    "format",
    "reason",
    "message",
    "message_zh",
    "value",
    "threshold",
    "hits",
    "detail",
    "opened_at",
    "resolved_at",
    "resolved_reason",
    "acknowledged_at",
}


@pytest.fixture
def server(start: Start) -> Running:
    return start(webhook_allow=("127.0.0.1",))


def test_from_a_nan_to_a_verified_webhook(
    build: Build, server: Running, agent: MakeAgent, call: Call, receiver: Receiver, wait: Callable[..., None]
) -> None:
    made = call("POST", "/api/v1/endpoints", {"url": receiver.url, "min_severity": "critical"})
    assert made.status == 201
    layers = build.layers("emb", "head")
    one = agent(run="demo run", layers=tuple(layers.values()))
    one.deliver(
        build.body(
            build.summary("act", 0, 2, nans={1: 3}),
            build.summary("act_in", 0, 2),
            records={0: {"loss": math.nan}},
        )
    )
    wait(lambda: len(receiver.requests) == 1)
    (got,) = receiver.requests
    told = Webhook(made.json["secret"]).verify(got.body, got.headers)
    assert told["type"] == "alert.firing"
    (alert,) = call("GET", "/api/v1/runs/demo%20run/alerts").json
    assert set(alert) == SHAPE
    assert (alert["layer"], alert["value"], alert["state"]) == ("head", "NaN", "firing")
    assert {k: v for k, v in told["data"].items() if k != "run_url"} == alert
    assert call("GET", "/api/v1/alerts").json == [alert]
    assert call("GET", "/api/v1/alerts?state=resolved").json == []
    seen = call("POST", f"/api/v1/alerts/{alert['id']}/acknowledge")
    assert seen.status == 200
    assert seen.json["acknowledged_at"] is not None
    assert call("POST", f"/api/v1/alerts/{alert['id']}/acknowledge").json == seen.json
    wait(lambda: [d["state"] for d in call("GET", "/api/v1/deliveries").json] == ["ok"])
    (delivery,) = call("GET", f"/api/v1/deliveries?endpoint={made.json['id']}").json
    assert delivery["webhook_id"] == got.headers["webhook-id"]
    again = call("POST", f"/api/v1/deliveries/{delivery['id']}/redeliver")
    assert again.status == 202
    wait(lambda: len(receiver.requests) == 2)
    assert receiver.requests[1].headers["webhook-id"] == delivery["webhook_id"]
    assert receiver.requests[1].body == got.body


def test_a_run_that_ended_badly_goes_on_saying_so(
    build: Build, agent: MakeAgent, call: Call, wait: Callable[..., None]
) -> None:
    one = agent(run="night", layers=tuple(build.layers("head").values()))

    def tally() -> tuple[int, int]:
        (run,) = call("GET", "/api/v1/runs").json
        return run["alerts"]["critical"], run["alerts_past"]["critical"]

    one.deliver(build.body(build.summary("act", 0, 1), records={0: {"loss": math.nan}}))
    wait(lambda: tally() == (1, 0))
    one.send(wire.Bye(seq=1, reason="finished"))
    wait(lambda: call("GET", "/api/v1/runs").json[0]["state"] == "finished")
    assert tally() == (1, 0)
    again = agent(run="night", layers=tuple(build.layers("head").values()))
    again.deliver(build.body(records={0: {"loss": 1.0}}))
    wait(lambda: tally() == (0, 1))


def test_endpoints(call: Call, receiver: Receiver, wait: Callable[..., None]) -> None:
    made = call("POST", "/api/v1/endpoints", {"url": receiver.url, "kinds": ["loss_zero"]}).json
    assert made["secret"].startswith("whsec_")
    (listed,) = call("GET", "/api/v1/endpoints").json
    assert listed == {k: v for k, v in made.items() if k != "secret"}
    fresh = call("POST", f"/api/v1/endpoints/{made['id']}/secret", {}).json
    assert fresh["secret"] != made["secret"]
    assert call("POST", f"/api/v1/endpoints/{made['id']}/test").status == 202
    wait(lambda: len(receiver.requests) == 1)
    got = receiver.requests[0]
    for secret in (made["secret"], fresh["secret"]):
        assert Webhook(secret).verify(got.body, got.headers)["type"] == "alert.test"
    assert call("DELETE", f"/api/v1/endpoints/{made['id']}").status == 204
    assert call("GET", "/api/v1/endpoints").json == []
    assert call("GET", "/api/v1/deliveries").json == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": "ftp://example.com/"}, "bad_url"),
    ({"url": "example.com"}, "bad_url"),
    ({"url": "http://"}, "bad_url"),
    ({"url": "http://[::1"}, "bad_url"),
    ({"url": "http://example.com:99999/"}, "bad_url"),
    ({"url": "http://user:secret@example.com/"}, "bad_url"),
    ({"url": "http://example.com/#part"}, "bad_url"),
    ({"url": "http://ex ample.com/"}, "bad_url"),
    ({"url": "http://ex\u00e4mple.com/"}, "bad_url"),
    ({"url": "http://example.com/\r\nx: y"}, "bad_url"),
    ({"url": "http://a..b/"}, "bad_url"),
    ({"url": f"http://{'a' * 64}.com/"}, "bad_url"),
    ({"url": "http://10.0.0.1/"}, "forbidden_address"),
    ({"url": "http://[::ffff:169.254.169.254]/"}, "forbidden_address"),
    ({"url": "http://example.com/", "secret": "hunter2"}, "bad_secret"),
    ({"url": "http://example.com/", "kinds": ["no_such"]}, "unknown_kind"),
    ({"url": "http://example.com/", "min_severity": "loud"}, "invalid"),
    ({}, "invalid"),
]


@pytest.mark.parametrize(("body", "code"), BAD, ids=[f"{code}-{i}" for i, (_, code) in enumerate(BAD)])
def test_a_bad_endpoint_is_refused_with_a_hint(call: Call, body: dict[str, Any], code: str) -> None:
    reply = call("POST", "/api/v1/endpoints", body)
    assert reply.status == 422
    error = reply.json["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/runs/nobody/alerts"),
        ("POST", "/api/v1/alerts/7/acknowledge"),
        ("POST", "/api/v1/endpoints/7/test"),
        ("DELETE", "/api/v1/endpoints/7"),
        ("POST", "/api/v1/deliveries/7/redeliver"),
    ],
)
def test_what_is_not_there_is_404(call: Call, method: str, path: str) -> None:
    reply = call(method, path)
    assert reply.status == 404
    assert reply.json["error"]["hint"].startswith("GET /api/v1/")


def test_the_rules_are_listed_with_their_parameters(call: Call) -> None:
    rules = {rule["kind"]: rule for rule in call("GET", "/api/v1/rules").json}
    assert set(rules) == set(RULES)
    assert rules["loss_spike"]["parameters"]["ratio"] == 1.5
    assert rules["limit_near"]["parameters"]["near_bits"] == 1.0
    assert all(rule["description"] and rule["description_zh"] for rule in rules.values())


def test_rules_are_set_for_all_and_for_one_while_a_run_goes_on(
    build: Build, agent: MakeAgent, call: Call, wait: Callable[..., None]
) -> None:
    one, other = agent(run="one"), agent(run="other")
    for each in (one, other):
        each.deliver(build.body(records={step: {"loss": 2.0} for step in range(10)}))
    answer = call("PUT", "/api/v1/rules", {"preset": "strict"})
    assert (answer.status, len(answer.json)) == (200, len(RULES))
    answer = call("PUT", "/api/v1/runs/one/rules", {"parameters": {"loss_spike": {"ratio": 1.1, "mads": 0}}})
    assert answer.status == 200
    of_one = {rule["kind"]: rule["parameters"] for rule in call("GET", "/api/v1/runs/one/rules").json}
    of_all = {rule["kind"]: rule["parameters"] for rule in call("GET", "/api/v1/rules").json}
    assert (of_one["loss_spike"]["ratio"], of_one["stalled"]["seconds"]) == (1.1, 30.0)
    assert (of_all["loss_spike"]["ratio"], of_all["stalled"]["seconds"]) == (1.3, 30.0)
    for each in (one, other):
        each.deliver(build.body(records={10: {"loss": 2.5}}))
    wait(lambda: len(call("GET", "/api/v1/alerts").json) == 1)
    (alert,) = call("GET", "/api/v1/runs/one/alerts").json
    assert (alert["kind"], alert["first_step"]) == ("loss_spike", 10)


def test_settings_say_what_is_set_where_and_what_would_hold_without(agent: MakeAgent, call: Call) -> None:
    agent(run="one")
    untouched = call("GET", "/api/v1/runs/one/rules/settings").json
    assert (untouched["preset"], untouched["parameters"]) == (None, {})
    changes = {"preset": "strict", "parameters": {"loss_spike": {"ratio": 1.1}}}
    call("PUT", "/api/v1/rules", changes)
    of_all = call("GET", "/api/v1/rules/settings").json
    assert {key: of_all[key] for key in changes} == changes
    assert of_all["levels"][""] == of_all["levels"]["default"]
    call("PUT", "/api/v1/runs/one/rules", {"parameters": {"stalled": {"seconds": 5}}})
    of_one = call("GET", "/api/v1/runs/one/rules/settings").json
    assert (of_one["preset"], of_one["parameters"]) == (None, {"stalled": {"seconds": 5}})
    levels = {
        name: (level["loss_spike"]["ratio"], level["stalled"]["seconds"]) for name, level in of_one["levels"].items()
    }
    assert (levels[""], levels["default"], levels["strict"]) == ((1.1, 30.0), (1.5, 60.0), (1.3, 30.0))
    assert call("GET", "/api/v1/runs/none/rules/settings").status == 404


def test_what_is_wrong_with_rules_is_said(agent: MakeAgent, call: Call) -> None:
    agent(run="one")
    for path in ("/api/v1/rules", "/api/v1/runs/one/rules"):
        answer = call("PUT", path, {"preset": "lenient"})
        assert (answer.status, answer.json["error"]["code"]) == (422, "bad_rule")
        assert "strict" in answer.json["error"]["message"]
    assert call("PUT", "/api/v1/runs/none/rules", {}).status == 404
    assert set(call("GET", "/api/v1/rules/presets").json) == {"default", "as-published", "strict"}


def test_a_preview_says_what_rules_would_have_done_and_tells_nobody(build: Build, agent: MakeAgent, call: Call) -> None:
    one = agent(run="one", layers=tuple(build.layers("emb", "head").values()))
    one.deliver(build.body(records={step: {"loss": 2.0} for step in range(20)}))
    one.deliver(build.body(build.summary("act", 20, 2, nans={1: 3}), records={20: {"loss": 2.5}}))
    path = "/api/v1/runs/one/rules/preview"
    assert call("POST", path, {}).json == {"alerts": [], "from_step": 0, "tensors_from_step": 0}
    found = call("POST", path, {"parameters": {"loss_spike": {"ratio": 1.1, "mads": 0}}}).json
    assert [(a["kind"], a["first_step"], a["severity"]) for a in found["alerts"]] == [("loss_spike", 20, "info")]
    assert "2.5" in found["alerts"][0]["message"]
    off = {"parameters": {"loss_spike": {"ratio": 1.1, "mads": 0, "enabled": 0}}}
    assert call("POST", path, off).json["alerts"] == []
    assert call("POST", path + "?last_steps=1", {"preset": "strict"}).json["from_step"] == 20
    assert call("POST", path, {"preset": "lenient"}).status == 422
    assert call("GET", "/api/v1/alerts").json == []


def test_silences(call: Call) -> None:
    made = call("POST", "/api/v1/silences", {"seconds": 60, "kind": "limit_near", "layer": "h.1", "comment": "known"})
    assert made.status == 201
    assert call("GET", "/api/v1/silences").json == [made.json]
    assert call("POST", "/api/v1/silences", {"seconds": 60, "kind": "nothing"}).status == 422
    assert call("POST", "/api/v1/silences", {"seconds": 0}).status == 422
    assert call("DELETE", f"/api/v1/silences/{made.json['id']}").status == 204
    assert call("GET", "/api/v1/silences").json == []
    assert call("DELETE", "/api/v1/silences/77").status == 404
