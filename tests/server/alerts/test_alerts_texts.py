"""What alerts say: in both languages, with the numbers, for every reason a rule can give."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from floatscope_server.alerts.advice import ADVICE
from floatscope_server.alerts.keys import FRAMEWORKS, SETTINGS, framework_of, with_keys
from floatscope_server.alerts.texts import message
from floatscope_server.rules import RULES
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
    ("loss_divergence", "stays_above", {"best": 2.25, "ratio": 3.5}, ["2.25", "3.5"]),
    ("loss_plateau", "no_progress", {"first": 4.25, "records": 200}, ["4.25", "200"]),
    ("grad_norm_frozen", "masked", {"records": 3, "skipped": 0}, ["3", "0.5"]),
    ("grad_norm_frozen", "identical", {"records": 3, "skipped": 0}, ["3", "0.5"]),
    ("stale_grad_norm", "skipped_steps", {"records": 3, "skipped": 3}, ["0.5"]),
    ("lr_frozen", "masked", {"records": 3, "skipped": 3}, ["0.5", "3"]),
    *(
        ("scale_extreme", r, {"amax": 0.0, "scale": 2.0**50}, ["h.9", "fp8x"])
        for r in ("outside", "amax_zero", "nonfinite_followed")
    ),
    ("dead_gradient", "all_zero", {"steps": 50}, ["h.9"]),
    ("update_ratio", "high", {"steps": 10}, ["h.9", "10"]),
    ("update_ratio", "low", {"steps": 200}, ["h.9", "200"]),
    ("precision_mismatch", "declared_fp8", {}, ["h.9", "fp8x"]),
    *(("format_mismatch", r, {}, ["h.9", "fp8x"]) for r in ("ocp_on_fnuz", "fnuz_on_ocp", "no_fp8")),
    (
        "clip_saturation",
        "above_own_level",
        {"level": 0.05, "p10": 0.25, "p50": 1.0, "suggested_max_grad_norm": 4.5, "steps": 200},
        ["50 %", "5 %", "4.5", "200"],
    ),
    ("stalled", "no_step", {"step_time_s": 2.0}, ["0.5", "240"]),
    ("stalled", "gpu", {"text": "GPU Hang"}, ["GPU Hang"]),
    ("straggler", "late", {"median": 0.25, "ratio": 2.5, "steps": 20}, ["2.5", "20"]),
    ("throughput_drop", "slower", {"baseline": 0.25, "ratio": 2.5}, ["2.5", "0.25"]),
    ("vram_near_oom", "occupancy", {"used": 77 << 30, "total": 80 << 30}, ["77 GiB", "card0"]),
    ("vram_near_oom", "allocator_retry", {"used": None, "total": None}, ["card0"]),
    ("vram_leak", "slope", {"slope": 100 << 20, "r_squared": 0.99, "used": 1 << 33, "total": 1 << 34}, ["100 MiB"]),
    ("vram_jitter", "jumps", {"samples": 50}, ["50", "card0"]),
    ("gpu_util_drop", "below_own_level", {"level": 95.0, "seconds": 60.0}, ["95 %", "card0"]),
    (
        "gpu_imbalance",
        "spread",
        {"busiest": "card7", "busiest_percent": 95.0, "idlest_percent": 35.0},
        ["card7", "card0", "95 %"],
    ),
    *(("gpu_fault", r, {"text": "words of the driver"}, ["words of the driver"]) for r in ("ecc", "hang", "throttle")),
    ("gpu_fault", "ecc_count", {"new": 3}, ["3", "card0", "0.5"]),
    *(("gpu_fault", f"throttle_{r}", {"seconds": 180.0}, ["180", "card0", "0.5 %"]) for r in ("heat", "brake")),
    ("gpu_fault", "link_width", {}, ["card0", "0.5"]),
    ("data_gap", "queue_full", {"first": 3, "last": 77}, ["queue_full", "77"]),
    ("coverage_low", "unobserved", {"observed": 8, "trainable": 10, "reasons": {}}, ["2", "10"]),
]
LAYERS = (
    "limit_near",
    "limit_crossed",
    "underflow",
    "scale_extreme",
    "dead_gradient",
    "update_ratio",
    "precision_mismatch",
    "format_mismatch",
)


def _verdict(kind: str, reason: str, detail: dict[str, Any]) -> Verdict:
    layer = "h.9" if kind in LAYERS else None
    return Verdict(
        kind=kind,
        severity=Severity.CRITICAL,
        reason=reason,
        since_step=1,
        layer=layer,
        tensor="act_in",
        format="fp8x",
        rank=3,
        device="card0",
        value=0.5,
        threshold=240.0,
        detail=detail,
    )


@pytest.mark.parametrize(("kind", "reason", "detail", "says"), CASES)
def test_text(kind: str, reason: str, detail: dict[str, Any], says: list[str]) -> None:
    english, chinese = message(_verdict(kind, reason, detail), 1234, 7)
    for text in (english, chinese):
        assert "1234" in text or kind == "data_gap"
        assert "None" not in text
        assert "{" not in text
        assert "  " not in text
        assert not re.search(r"\bstep \d+ \d", text), "two figures side by side"
        for part in says:
            assert part in text
    assert re.search("[\u4e00-\u9fff]", chinese)
    assert "。 " not in chinese
    assert not re.search("[\u4e00-\u9fff]", english)
    if kind in LAYERS:
        assert "; the same in 6 more layers" in english
        assert "另有 6 层" in chinese


@pytest.mark.parametrize(
    ("count", "says"), [(1.0, "1 micro-batch of step 9 had"), (2.0, "2 micro-batches of step 9 had")]
)
def test_micro_batches_are_counted_in_words(count: float, says: str) -> None:
    verdict = dataclasses.replace(_verdict("nonfinite", "raw_loss", {}), value=count)
    assert says in message(verdict, 9, 1)[0]


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


def test_every_kind_is_worded() -> None:
    assert {kind for kind, *_ in CASES} == set(RULES)


def test_a_text_names_the_settings_of_the_runs_framework() -> None:
    verdict = _verdict("loss_divergence", "stays_above", {"best": 2.25, "ratio": 3.5})
    for framework, key in (
        ("llamafactory", "max_grad_norm"),
        ("megatron", "--clip-grad"),
        ("deepspeed", "gradient_clipping"),
    ):
        for text in message(verdict, 3, 1, framework):
            assert key in text


@pytest.mark.parametrize(
    ("config", "series", "framework"),
    [
        ({"framework": "LLaMA-Factory"}, [], "llamafactory"),
        ({"optimizers": ["DeepSpeedZeroOptimizer"], "torch": "2.9"}, [], "deepspeed"),
        ({}, ["lm loss", "grad norm"], "megatron"),
        ({}, ["loss", "learning_rate"], "transformers"),
        ({"torch": "2.9"}, ["loss"], "torch"),
        ({}, ["loss"], ""),
    ],
)
def test_the_framework_shows(config: dict[str, Any], series: list[str], framework: str) -> None:
    assert framework_of(config, series) == framework


def test_every_setting_of_an_advice_is_known() -> None:
    for pair in ADVICE.values():
        for text in pair:
            assert set(re.findall(r"{(\w+)}", text)) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("device", "rank", "english", "chinese"),
    [
        ("card0", None, "at step 7 (card0): HW", "（card0）"),
        ("card0", 3, "at step 7 (card0 on rank 3): HW", "（card0 rank 3）"),
        (None, 3, "at step 7 (rank 3): HW", "（rank 3）"),
        (None, None, "at step 7: HW", "挂起："),
    ],
)
def test_a_fault_names_the_card_as_far_as_it_is_known(
    device: str | None, rank: int | None, english: str, chinese: str
) -> None:
    verdict = Verdict(
        kind="gpu_fault",
        severity=Severity.CRITICAL,
        reason="hang",
        since_step=7,
        device=device,
        rank=rank,
        detail={"text": "HW"},
    )
    told, told_zh = message(verdict, 7, 1)
    assert english in told
    assert chinese in told_zh


@pytest.mark.parametrize(
    ("hits", "says"), [(1, "value 240."), (2, "; the same in 1 more layer."), (3, "; the same in 2 more layers.")]
)
def test_other_layers_of_one_cause_are_counted_in_a_clause_of_their_own(hits: int, says: str) -> None:
    assert says in message(_verdict("limit_crossed", "above_max", LIMIT), 1234, hits)[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_settings_are_named_in_the_language_of_the_sentence(framework: str) -> None:
    for setting in SETTINGS:
        chinese = with_keys(f"请检查 {{{setting}}}。", framework, chinese=True)
        assert not re.search(r"'s | (of|or|and|the|in) |the |\(in ", chinese), chinese
    assert "DataLoader 的 num_workers=" in with_keys("{workers}", "torch", chinese=True)
