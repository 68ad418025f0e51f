"""Presets and single changes of parameters: what is taken, and what is refused in words."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_server.alerts.models import Rule
from floatscope_server.alerts.tuning import combined
from floatscope_server.rules import RULES, RuleParameters
from floatscope_server.rules.presets import PRESETS, as_changes, changed, with_preset

EVERY = [(rule, name) for rule, values in as_changes(RuleParameters()).items() for name in values if name != "enabled"]


def _row(preset: str | None, **parameters: dict[str, float]) -> Rule:
    return Rule(run_id=1, preset=preset, parameters=parameters, changed_at=datetime.now(UTC))


def test_every_kind_has_its_parameters() -> None:
    fields = {f.name for f in dataclasses.fields(RuleParameters)} - {"off"}
    assert {field for field, _, _ in RULES.values()} == fields


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_what_exists(name: str) -> None:
    rules = as_changes(with_preset(name))
    for rule, values in PRESETS[name].items():
        for parameter, value in values.items():
            assert rules[rule][parameter] == value


@given(st.sampled_from(EVERY), st.integers(1, 10_000))
def test_every_parameter_can_be_set(where: tuple[str, str], value: int) -> None:
    rule, name = where
    rules = changed(RuleParameters(), {rule: {name: value}})
    before, after = as_changes(RuleParameters()), as_changes(rules)
    assert after[rule][name] == value
    before[rule][name] = value
    assert after == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss_spik": {}}, "no rule 'loss_spik'"),
        ({"loss_spike": {"ration": 2}}, "no parameter loss_spike.ration"),
        ({"loss_spike": {"ratio": float("nan")}}, "finite"),
        ({"loss_spike": {"ratio": "2"}}, "finite"),
        ({"loss_spike": {"ratio": -1}}, "negative"),
        ({"loss_spike": {"mads_from": 2.5}}, "whole"),
        ({"loss_spike": {"enabled": 2}}, "loss_spike.enabled must be 0 or 1"),
        ({"underflow": {"of_steps": 0}}, "at least 1"),
        ({"underflow": {"of_steps": 10**9}}, "at most 10000"),
    ],
)
def test_what_is_refused(changes: dict[str, dict[str, float]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        changed(RuleParameters(), changes)


def test_a_rule_is_off_until_it_is_on_again() -> None:
    off = changed(RuleParameters(), {"limits": {"enabled": 0, "near_bits": 2}})
    assert off.off_kinds == {"limit_near", "limit_crossed"}
    assert (as_changes(off)["limits"]["enabled"], as_changes(off)["loss_spike"]["enabled"]) == (0, 1)
    on = combined(_row(None, limits={"enabled": 0}), _row(None, limits={"enabled": 1}))
    assert on.off_kinds == frozenset()


def test_a_run_stands_over_all_runs() -> None:
    everywhere = _row("strict", loss_spike={"ratio": 1.7})
    assert combined(None, None) == RuleParameters()
    assert combined(everywhere, None).loss_spike.ratio == 1.7
    assert combined(everywhere, None).stalled.seconds == 30.0
    own = combined(everywhere, _row(None, loss_spike={"margin": 0.4}))
    assert (own.loss_spike.ratio, own.loss_spike.margin, own.stalled.seconds) == (1.7, 0.4, 30.0)
    apart = combined(everywhere, _row("default", loss_spike={"margin": 0.4}))
    assert (apart.loss_spike.ratio, apart.stalled.seconds) == (1.5, 60.0)
    with pytest.raises(ValueError, match="no preset 'lenient'"):
        combined(_row("lenient"), None)
