"""HTTP: rules, their parameters for all runs and for one, and what they would have done."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from sqlmodel import Session

from floatscope_server.alerts.models import Rule
from floatscope_server.alerts.preview import preview
from floatscope_server.alerts.tuning import ALL_RUNS, combined, parameters_of, set_rule
from floatscope_server.audit import Actor, record
from floatscope_server.query.line import run_named
from floatscope_server.responses import Refusal
from floatscope_server.rules import RULES, RuleParameters
from floatscope_server.rules.presets import PRESETS, as_changes, with_preset
from floatscope_server.services import Running

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["rules"])

RunName = Annotated[str, Path()]


class RuleOut(BaseModel):
    """A rule with the parameters in force. Kinds of one ``rule`` share them."""

    kind: str
    rule: str
    description: str
    description_zh: str
    parameters: dict[str, float]


class RulesIn(BaseModel):
    """What is set: a preset (null: that of all runs), and single parameters over it, by rule."""

    preset: str | None = Field(default=None, max_length=40)
    parameters: dict[str, dict[str, float]] = Field(default_factory=dict, max_length=100)


class SettingsOut(RulesIn):
    """What is set here, by rule, and ``levels``: all parameters as they would be with nothing but a preset set here, by
    the preset's name; "" is without one, which for a run means those of all runs."""

    levels: dict[str, dict[str, dict[str, float]]]


class PreviewOut(BaseModel):
    """The alerts that the rules would have raised from a step on, and the step from which on tensors could be judged:
    of older ones only the series are."""

    alerts: list[dict[str, Any]]
    from_step: int | None
    tensors_from_step: int | None


def _shown(rules: RuleParameters) -> list[RuleOut]:
    parameters = as_changes(rules)
    return [
        RuleOut(kind=kind, rule=field, description=english, description_zh=chinese, parameters=parameters[field])
        for kind, (field, english, chinese) in RULES.items()
    ]


def _refused(error: ValueError) -> Refusal:
    return Refusal(422, "bad_rule", str(error), "GET /api/v1/rules lists the rules with their parameters")


@router.get("/rules", response_model=list[RuleOut])
def list_rules(services: Running) -> list[RuleOut]:
    """The rules, with the parameters of all runs that have none of their own."""
    with services.store.read() as session:
        return _shown(parameters_of(session))


@router.get("/rules/presets", response_model=dict[str, dict[str, dict[str, float]]])
def list_presets() -> Mapping[str, Any]:
    """Each preset by its name: what it changes."""
    return PRESETS


def _settings(own: Rule | None, without: RuleParameters) -> SettingsOut:
    levels = {name: as_changes(with_preset(name)) for name in PRESETS} | {"": as_changes(without)}
    if own is None:
        return SettingsOut(levels=levels)
    return SettingsOut(preset=own.preset, parameters=own.parameters, levels=levels)


@router.get("/rules/settings", response_model=SettingsOut)
def settings_of_all(services: Running) -> SettingsOut:
    """What is set for all runs, to be changed and put back."""
    with services.store.read() as session:
        return _settings(session.get(Rule, ALL_RUNS), RuleParameters())


@router.put("/rules", response_model=list[RuleOut])
def set_rules(services: Running, actor: Actor, wanted: RulesIn) -> list[RuleOut]:
    """Set the parameters of all runs, in place of what was set before. Runs that go on are judged by them at once."""

    def write(session: Session) -> RuleParameters:
        set_rule(session, ALL_RUNS, wanted.preset, wanted.parameters, datetime.now(UTC))
        record(session, actor, "rules.set", "all runs", wanted.model_dump())
        session.flush()
        return parameters_of(session)

    return _set(services, write)


@router.get("/runs/{run}/rules", response_model=list[RuleOut])
def list_run_rules(services: Running, run: RunName) -> list[RuleOut]:
    """The rules, with the parameters by which a run is judged."""
    with services.store.read() as session:
        found = run_named(session, run)
        assert found.id is not None
        return _shown(parameters_of(session, found.id))


@router.get("/runs/{run}/rules/settings", response_model=SettingsOut)
def settings_of_run(services: Running, run: RunName) -> SettingsOut:
    """What is set for one run, to be changed and put back."""
    with services.store.read() as session:
        found = run_named(session, run)
        assert found.id is not None
        return _settings(session.get(Rule, found.id), parameters_of(session))


@router.put("/runs/{run}/rules", response_model=list[RuleOut])
def set_run_rules(services: Running, actor: Actor, run: RunName, wanted: RulesIn) -> list[RuleOut]:
    """Set the parameters of one run, in place of what was set for it before. It is judged by them at once."""

    def write(session: Session) -> RuleParameters:
        found = run_named(session, run)
        assert found.id is not None
        set_rule(session, found.id, wanted.preset, wanted.parameters, datetime.now(UTC))
        record(session, actor, "rules.set", found.name, wanted.model_dump())
        session.flush()
        return parameters_of(session, found.id)

    return _set(services, write)


@router.post("/runs/{run}/rules/preview", response_model=PreviewOut)
def preview_rules(
    services: Running,
    run: RunName,
    wanted: RulesIn,
    last_steps: Annotated[int, Query(ge=1, le=200_000)] = 20_000,
) -> dict[str, Any]:
    """What these settings would have done in a run that is recorded. Nothing is stored and nobody is told."""
    with services.store.read() as session:
        found = run_named(session, run)
        own = Rule(run_id=1, preset=wanted.preset, parameters=wanted.parameters, changed_at=datetime.now(UTC))
        try:
            rules = combined(session.get(Rule, ALL_RUNS), own)
        except ValueError as error:
            raise _refused(error) from error
        return preview(session, found, rules, last_steps=last_steps)


def _set(services: Running, write: Any) -> list[RuleOut]:  # noqa: ANN401 - a function of a session
    try:
        rules: RuleParameters = services.store.write(write)
    except ValueError as error:
        raise _refused(error) from error
    services.alerts.rules_changed()
    return _shown(rules)
