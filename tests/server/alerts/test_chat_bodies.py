"""Bodies for chats: held against the schemas and limits that the vendors document, with names meant to break them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from floatscope_server.alerts.receivers import CHATS, letter
from floatscope_server.alerts.receivers.note import LANGUAGES, LISTED, Note, items_of
from floatscope_server.alerts.receivers.text import clean, fit, utf8, utf16

SCHEMAS = Path(__file__).parent / "schemas"
VALIDATORS = {name: Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text())) for name in CHATS}
# The whole body, in bytes: Teams 28 KB, Feishu 20 KB, DingTalk 20000; Slack cuts above 40,000 characters of text.
BYTES = {"slack": 100_000, "discord": 100_000, "teams": 28_000, "feishu": 20_000, "dingtalk": 20_000, "wecom": 10_000}
NOW = datetime(2026, 1, 1, tzinfo=UTC)

each_chat = pytest.mark.parametrize("chat", list(CHATS))
each_language = pytest.mark.parametrize("language", LANGUAGES)

HOSTILE = [
    "<!channel> <@U123> <https://evil.example|here>",
    "@everyone @here <@&1234> <#1> ||x||",
    "[click](https://evil.example) ![x](https://evil.example/x.png)",
    '<at user_id="all">all</at> <at id=all></at>',
    "<@all> <font color='warning'>x</font>",
    "**bold** _it_ ~no~ `code` # head\n> quote\r\n- item",
    "\u202egnp.exe \x00\x1b[31m \u2028 \ud800",
    "&amp; {{DATE(2017-02-14T06:08:39Z)}} \\ \\\\ \\*",
    "溢出" * 400,
    "😀" * 3000,
    "|" * 5000,
]


def event(number: int = 1, state: str = "firing", **change: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    data = {
        "id": number,
        "run": "demo",
        "kind": "nonfinite",
        "severity": "critical",
        "first_step": 20,
        "layer": "model.layers.3.self_attn.q_proj",
        "rank": 1,
        "message": "The loss is NaN at step 20. Lower the peak learning rate.",
        "message_zh": "第 20 步损失为 NaN。请降低峰值学习率。",
        "run_url": "https://floatscope.example/#/run/demo",
    }
    return {"type": f"alert.{state}", "timestamp": "2026-01-01T00:00:00Z", "data": data | change}


def made(chat: str, language: str, *events: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The body, checked, as an object and as text."""
    _, body = letter(chat, "https://chat.example/x", None, Note(items_of(events), language), NOW)
    content = json.loads(body)
    VALIDATORS[chat].validate(content)
    assert len(body) <= BYTES[chat]
    if chat == "wecom":
        assert utf8(content["markdown"]["content"]) <= 4096
    if chat == "discord":
        (embed,) = content["embeds"]
        texts = [embed["title"], embed["description"], *(t for f in embed["fields"] for t in (f["name"], f["value"]))]
        assert sum(utf16(text) for text in texts) <= 6000
        assert utf16(embed["description"]) <= 4096
    return content, json.dumps(content, ensure_ascii=False)


@each_chat
@each_language
def test_a_message_says_what_where_and_what_to_try(chat: str, language: str) -> None:
    _, text = made(chat, language, event())
    for said in ("demo", "20", "nonfinite", "q_proj", "https://floatscope.example/#/run/demo", "Floatscope"):
        assert said in text.replace("\\", "")
    assert ("Lower the peak learning rate" in text) == (language == "en")
    assert ("请降低峰值学习率" in text) == (language == "zh")
    assert ("严重" in text) == (language == "zh")


@each_chat
@pytest.mark.parametrize("state", ["firing", "reminder", "resolved"])
@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
def test_every_state_has_a_body(chat: str, state: str, severity: str) -> None:
    _, text = made(chat, "en", event(state=state, severity=severity))
    told = {"firing": f"[{severity}]", "reminder": "still firing", "resolved": "resolved"}[state]
    assert told in text.replace("\\", "").replace("［", "[").replace("］", "]")


@each_chat
def test_a_test_message_has_no_step_and_perhaps_no_address(chat: str) -> None:
    data = {"run": "test", "kind": "test", "severity": "info", "message": "This is a test.", "message_zh": "测试"}
    made(chat, "en", {"type": "alert.test", "data": {**data, "run_url": None}})


@each_chat
@each_language
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_within_limits(chat: str, language: str, name: str) -> None:
    hostile: dict[str, Any] = {"run": name, "layer": name, "message": name * 3, "message_zh": name * 3}
    made(chat, language, event(**hostile))
    made(chat, language, *(event(number, **hostile) for number in range(40)))
    made(chat, language, event(run_url="https://floatscope.example/#/run/" + "%E6" * 5000))


@each_chat
@given(st.text(max_size=300), st.text(max_size=3000))
def test_any_name_gives_a_valid_body(chat: str, name: str, message: str) -> None:
    _, text = made(chat, "en", event(run=name, layer=name, message=message or "m"))
    text.encode()


def _strings(value: object, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in _strings(item, name)]
    if isinstance(value, list):
        return [found for item in value for found in _strings(item, key)]
    return [(key, value)] if isinstance(value, str) else []


@pytest.mark.parametrize("name", HOSTILE[:6], ids=range(6))
def test_nothing_of_a_name_is_markup(name: str) -> None:
    hostile = event(run=name, layer=name, message=name)
    content, _ = made("slack", "en", hostile)
    assert "<!" not in content["text"]
    assert "<@" not in content["text"]
    marked = [block["text"] for block in content["blocks"] if "text" in block and block["text"]["type"] == "mrkdwn"]
    marked += [f for block in content["blocks"] for f in block.get("fields", []) if f["type"] == "mrkdwn"]
    assert {text["text"] for text in marked} == {
        *("*Run*", "*Step*", "*Layer*", "*Rank*", "*Kind*"),
        "<https://floatscope.example/#/run/demo|Open in Floatscope>",
    }
    content, _ = made("discord", "en", hostile)
    assert content["allowed_mentions"] == {"parse": []}
    for text in (content["embeds"][0]["title"], content["embeds"][0]["description"]):
        assert re.search(r"(?<!\\)(\\\\)*[*_~`|<>\[\]]", text) is None
    for chat in ("dingtalk", "wecom"):
        content, _ = made(chat, "en", hostile)
        text = content["markdown"]["text" if chat == "dingtalk" else "content"]
        assert re.findall(r"\[[^\]]*\]\([^)]*\)", text) == [
            "[Open in Floatscope](https://floatscope.example/#/run/demo)"
        ]
        assert "<@" not in text
        assert "@" not in text
        assert set(re.findall(r"<[^>]*>", text)) <= {'<font color="warning">', "</font>"}
    content, _ = made("feishu", "en", hostile)
    assert {value for key, value in _strings(content) if key == "tag"} == {"plain_text", "div", "action", "button"}
    content, _ = made("teams", "en", hostile)
    assert {value for key, value in _strings(content) if key == "type" and value.startswith("Text")} == {"TextRun"}


@each_chat
@each_language
def test_many_are_a_list_and_a_count(chat: str, language: str) -> None:
    events = [event(number, severity="warning", kind="limit_near") for number in range(421)]
    events[400] = event(400, severity="critical")
    text = made(chat, language, *events)[1].replace("\\", "")
    assert "421" in text
    assert text.index("nonfinite") < text.index("limit_near")
    shown = text.count("limit_near · demo")
    assert 0 < shown <= LISTED
    rest = 421 - 1 - shown
    assert (f"and {rest} more: {rest} warning limit_near" if language == "en" else f"另有 {rest} 条") in text


def test_what_fired_and_resolved_is_told_once_and_after_what_fires() -> None:
    items = items_of([event(1), event(2, severity="info"), event(1, "resolved"), event(3, "resolved"), event(4)])
    assert [(item.state, item.severity) for item in items] == [
        ("firing", "critical"),
        ("firing", "info"),
        ("resolved", "critical"),
        ("resolved", "critical"),
    ]


@given(st.text(), st.integers(0, 40), st.sampled_from([utf8, utf16, len]))
def test_a_cut_keeps_to_the_limit_and_to_whole_replacements(text: str, limit: int, size: Any) -> None:  # noqa: ANN401
    escape = {"a": "\\a", "<": "&lt;", "é": "[e]"}
    whole = "".join(escape.get(char, char) for char in clean(text))
    cut = fit(clean(text), limit, size=size, escape=escape)
    assert size(cut) <= limit
    if size(whole) <= limit:
        assert cut == whole
        return
    pieces = [escape.get(char, char) for char in clean(text)]
    assert cut == "" or cut[:-1] in {"".join(pieces[:n]) for n in range(len(pieces))}
    cut.encode()


@given(st.text())
def test_clean_text_is_one_line_that_can_be_sent(text: str) -> None:
    found = clean(text)
    found.encode()
    assert found.splitlines() in ([], [found])
    assert not set(found) & set("\x00\x1b\u202e\u2028\u200b")


# The vendors give no value for their examples; these are of their code (Python, run by itself) on the figures in their
# documents: https://open.dingtalk.com/document/robots/customize-robot-security-settings ("this is secret") and
# https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot (timestamp 1599360473, secret "demo").
def test_the_signature_of_dingtalk() -> None:
    when = datetime.fromtimestamp(1577262236.757, UTC)
    note = Note(items_of([event()]), "en")
    url, _ = letter("dingtalk", "https://oapi.dingtalk.com/robot/send?access_token=abc", "this is secret", note, when)
    query = parse_qs(urlsplit(url).query, strict_parsing=True)
    timestamp = query["timestamp"][0]
    assert timestamp == "1577262236757"
    mac = hmac.new(b"this is secret", f"{timestamp}\nthis is secret".encode(), hashlib.sha256)
    assert query["sign"] == [base64.b64encode(mac.digest()).decode()]
    assert query["access_token"] == ["abc"]
    assert re.fullmatch(r"[A-Za-z0-9%._~-]+", url.partition("sign=")[2])
    assert unquote(url.partition("sign=")[2]) == query["sign"][0]


def test_the_signature_of_dingtalk_is_that_of_apprise(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: Any = importlib.import_module("apprise.plugins.dingtalk")
    monkeypatch.setattr(theirs.time, "time", lambda: 1577262236.757)
    other = theirs.NotifyDingTalk(token="a" * 64, secret="b" * 32)
    timestamp, signature = other.get_signature()
    when = datetime.fromtimestamp(1577262236.757, UTC)
    url, _ = letter("dingtalk", "https://x.example/", "b" * 32, Note(items_of([event()]), "en"), when)
    assert url == f"https://x.example/?timestamp={timestamp}&sign={signature}"


def test_the_signature_of_feishu() -> None:
    when = datetime.fromtimestamp(1599360473, UTC)
    _, body = letter("feishu", "https://open.feishu.cn/x", "demo", Note(items_of([event()]), "zh"), when)
    content = json.loads(body)
    VALIDATORS["feishu"].validate(content)
    assert content["timestamp"] == "1599360473"
    assert content["sign"] == "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8="
