"""What alerts say: in both languages, with the numbers, for every reason a rule can give."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from floatscope_server.alerts.texts import message
from floatscope_server.rules.verdict import Severity, Verdict

PRODUCER = {"after": "h.3", "first": "h.4.up", "kind": "act", "alone": True, "in": None, "how": "module", "order": 9}
LIMIT = {"max": 240.0, "headroom": 0.25, "scale": 4.0, "nans": 3, "infs": 2, "order": 9, "steps_to_overflow": 12.0}
SPIKE = {"median": 2.25, "ratio": 3.5, "records": 20}
SCALER = {
    "scaler": "collapsing",
    "loss_scale": 16.0,
    "highest_scale": 65536.0,
    "in_a_row": 3,
    "within": 10,
    "skips": 5,
}
SHARE = {"baseline": 0.01, "scale": 4.0}

CASES: list[tuple[str, str, dict[str, Any], list[str]]] = [
    *(
        ("nonfinite", reason, {"producer": PRODUCER, "in_a_row": 3}, ["h.4.up", "1234"])
        for reason in (
            "loss",
            "raw_loss",
            "eval_loss",
            "loss_absent",
            "grad_norm",
            "gradients",
            "masked_grad_norm",
            "gradient_overflow",
            "gradients_in_a_row",
        )
    ),
    ("nonfinite", "loss", {}, ["1234"]),
    ("loss_zero", "after_nonzero", {"before": 2.75}, ["2.75", "0.0"]),
    ("loss_zero", "beside_nonfinite", {}, ["0.0"]),
    *(("loss_spike", r, SPIKE, ["2.25", "3.5", "20"]) for r in ("above_median", "big_jump", "in_a_row")),
    ("grad_norm_spike", "far_above_median", SPIKE, ["2.25", "3.5", "20"]),
    ("loss_scale_collapse", "at_minimum", SCALER, ["16", "2^16"]),
    ("loss_scale_collapse", "many_skips", SCALER, ["10", "2^16"]),
    ("loss_scale_collapse", "skips_in_a_row", SCALER, ["16"]),
    ("limit_near", "headroom", LIMIT, ["0.25", "240", "12", "fp8x", "h.9"]),
    *(
        ("limit_crossed", r, LIMIT, ["fp8x", "h.9"])
        for r in (
            "above_max",
            "saturated",
            "scale_not_finite",
            "infinite",
            "nan",
        )
    ),
    ("underflow", "coming_cast", SHARE, ["1 %", "fp8x", "h.9"]),
    ("underflow", "lost", SHARE, ["1 %", "fp8x", "h.9"]),
]


def _verdict(kind: str, reason: str, detail: dict[str, Any]) -> Verdict:
    layer = "h.9" if kind in ("limit_near", "limit_crossed", "underflow") else None
    return Verdict(
        kind=kind,
        severity=Severity.CRITICAL,
        reason=reason,
        since_step=1,
        layer=layer,
        tensor="act_in",
        format="fp8x",
        rank=3,
        value=0.5,
        threshold=240.0,
        detail=detail,
    )


@pytest.mark.parametrize(("kind", "reason", "detail", "says"), CASES)
def test_text(kind: str, reason: str, detail: dict[str, Any], says: list[str]) -> None:
    english, chinese = message(_verdict(kind, reason, detail), 1234, 7)
    for text in (english, chinese):
        assert "1234" in text
        assert "None" not in text
        assert "{" not in text
        assert "  " not in text
        for part in says:
            assert part in text
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert not re.search("[\u4e00-\u9fff]", english)
    if kind in ("limit_near", "limit_crossed", "underflow"):
        assert "6 more layers" in english
        assert "另有 6 层" in chinese


@pytest.mark.parametrize(
    ("producer", "english", "chinese"),
    [
        (PRODUCER, "came from h.4.up: its inputs and parameters were finite", "来源是 h.4.up"),
        (PRODUCER | {"alone": False, "in": "h.4.up"}, "from inside h.4.up", "在 h.4.up 内部"),
        (
            PRODUCER | {"alone": False, "in": "h", "how": "between"},
            "between h.3 (last finite output) and h.4.up",
            "位于 h 内",
        ),
        (PRODUCER | {"alone": False, "after": None, "how": "between"}, "arose in h.4.up or before it", "或其之前"),
        (PRODUCER | {"alone": False, "how": "parameters"}, "parameters of h.4.up were not finite", "参数已不是有限值"),
        (PRODUCER | {"first": None, "how": "loss"}, "up to h.3 was finite", "损失计算"),
        (PRODUCER | {"alone": False, "how": "backward"}, "Going backward it arose between h.3 and h.4.up", "反向传播"),
        (
            PRODUCER | {"alone": False, "how": "not_later_than"},
            "h.4.up is the first of them to be broken",
            "h.4.up 是其中最先损坏的",
        ),
    ],
)
def test_where_it_came_from(producer: dict[str, Any], english: str, chinese: str) -> None:
    verdict = _verdict(
        "nonfinite", "loss", {"producer": producer, "limit": {"layer": "h.4", "kind": "act_in", "format": "e5m2"}}
    )
    texts = message(verdict, 5, 1)
    assert english in texts[0]
    assert chinese in texts[1]
    assert "e5m2" in texts[0]
    assert "e5m2" in texts[1]


def test_numbers_that_are_none() -> None:
    english, _ = message(
        Verdict(kind="nonfinite", severity=Severity.CRITICAL, reason="loss", since_step=0, value=math.nan), 0, 1
    )
    assert english.startswith("The loss is NaN at step 0. No tensor of that step shows where it came from.")


@pytest.mark.parametrize(("skipped", "says"), [(True, "weights are still sound"), (False, "spoils the weights")])
def test_a_skipped_step_has_not_reached_the_weights(skipped: bool, says: str) -> None:
    english, _ = message(_verdict("nonfinite", "loss", {"skipped": skipped}), 0, 1)
    assert says in english


def test_the_state_of_the_scaler_is_said_in_both_languages() -> None:
    english, chinese = message(_verdict("loss_scale_collapse", "at_minimum", SCALER), 0, 1)
    assert "the scaler is collapsing" in english
    assert "缩放器状态：崩溃" in chinese
