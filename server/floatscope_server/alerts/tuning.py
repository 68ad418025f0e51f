"""The parameters in force, as operators have set them for all runs and for one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlmodel import Session

from floatscope_server.alerts.models import Rule
from floatscope_server.rules import RuleParameters
from floatscope_server.rules.presets import DEFAULT, changed, with_preset

__all__ = ["ALL_RUNS", "combined", "parameters_of", "set_rule"]

ALL_RUNS = 0
"""The run of settings that hold for all."""


def parameters_of(session: Session, run_id: int = ALL_RUNS, base: RuleParameters | None = None) -> RuleParameters:
    """The parameters for a run: its preset, or that of all runs, or ``base``; over it those set for all runs, unless
    the run has a preset of its own; over them its own."""
    overall = session.get(Rule, ALL_RUNS)
    own = None if run_id == ALL_RUNS else session.get(Rule, run_id)
    return combined(overall, own, base)


def combined(overall: Rule | None, own: Rule | None, base: RuleParameters | None = None) -> RuleParameters:
    """The same from the two rows."""
    if own is not None and own.preset is not None:
        return changed(with_preset(own.preset), own.parameters)
    rules = base
    if overall is not None:
        preset = overall.preset or DEFAULT
        rules = changed(base if base is not None and preset == DEFAULT else with_preset(preset), overall.parameters)
    rules = RuleParameters() if rules is None else rules
    return rules if own is None else changed(rules, own.parameters)


def set_rule(
    session: Session, run_id: int, preset: str | None, parameters: Mapping[str, Mapping[str, Any]], now: datetime
) -> None:
    """Replace what is set for a run, or for all; ``ValueError`` says what is wrong with it."""
    row = Rule(run_id=run_id, preset=preset, parameters={k: dict(v) for k, v in parameters.items()}, changed_at=now)
    overall = session.get(Rule, ALL_RUNS)
    combined(row if run_id == ALL_RUNS else overall, None if run_id == ALL_RUNS else row)
    session.merge(row)
