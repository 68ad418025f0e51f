"""All verdicts on a training's configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatscope._doctor._environment_checks import environment_checks
from floatscope._doctor._keys import FRAMEWORKS, framework_of, release
from floatscope._doctor._lint_accelerate import accelerate_checks
from floatscope._doctor._lint_deepspeed import deepspeed_checks, together_checks
from floatscope._doctor._lint_precision import precision_checks
from floatscope._doctor._lint_python import python_checks
from floatscope._doctor._lint_trainer import key_checks, schedule_checks
from floatscope._doctor._lint_values import kind_checks, name_checks, switch_checks
from floatscope._doctor._machine import Card, Machine
from floatscope._doctor._masks import mask_checks
from floatscope._doctor._read import Document, UnreadableError, read
from floatscope._doctor._verdict import Verdict, ok, wrong

__all__ = ["lint"]


def lint(document: Document, *, chips: Sequence[str] = ()) -> list[Verdict]:
    """``document`` judged for ``chips`` (architectures or product names; () for none known).

    ``UnreadableError`` for a file that belongs to none of the frameworks.
    """
    if document.kind == "python":
        return python_checks(document, chips)
    found: list[Verdict] = []
    if document.environment:
        found += _environment(document, chips)
    framework = framework_of(document.values)
    if framework is None:
        if document.environment:
            return found or [ok("configuration", f"{document.path.name}: variables only")]
        raise UnreadableError(f"{document.path}: none of its keys belongs to {', '.join(FRAMEWORKS)}")
    verdicts = _of(framework, document, chips)
    name = ok("configuration", f"{document.path.name}: {framework}, keys of release {release(framework)}")
    return [name, *found, *verdicts]


def _of(framework: str, document: Document, chips: Sequence[str]) -> list[Verdict]:
    values = document.values
    if framework == "deepspeed":
        return list(deepspeed_checks(values))
    if framework == "accelerate":
        beside, found = _beside(document, _inner(values, "deepspeed_config").get("deepspeed_config_file"))
        return [*found, *accelerate_checks(values, beside, chips)]
    beside, found = _beside(document, values.get("deepspeed"))
    found += key_checks(framework, values, strict=framework == "llamafactory" and document.kind == "mapping")
    for owner in dict.fromkeys(("transformers", framework)):
        found += name_checks(owner, values)
    if document.kind == "mapping":
        found += kind_checks(framework, values)
    elif framework == "llamafactory":
        found += switch_checks(values)
    found += precision_checks(framework, values, beside, chips)
    found += schedule_checks(values)
    if beside:
        found += [*deepspeed_checks(beside), *together_checks(values, beside)]
    return found


def _inner(values: Any, key: str) -> dict[str, Any]:  # noqa: ANN401  # whatever stands in a file
    inner = values.get(key)
    return inner if isinstance(inner, dict) else {}


def _beside(document: Document, named: object) -> tuple[dict[str, Any], list[Verdict]]:
    """The DeepSpeed configuration that this one names or contains."""
    if isinstance(named, dict):
        return named, []
    if not isinstance(named, str) or not named:
        return {}, []
    # Frameworks read it from the working directory; examples lie beside one another.
    places = (Path(named), document.path.parent / named, document.path.parent / Path(named).name)
    # os.path, because Path.is_file raises for a folder that is not ours to open and for a name that is too long.
    place = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113
    if place is None:
        return {}, [
            wrong("deepspeed", named, "there is no such file, here or beside the configuration", "correct the path")
        ]
    try:
        return dict(read(place).values), []
    except UnreadableError as error:
        return {}, [wrong("deepspeed", named, str(error), "correct the file")]


def _environment(document: Document, chips: Sequence[str]) -> list[Verdict]:
    cards = tuple(Card(pci="", gfx=chip) for chip in chips if chip.startswith("gfx"))
    # How many cards the script will meet is not known here.
    machine = Machine(environment=document.environment, driver="live", cards=cards[:0], tested_with=None)
    judged = Machine(environment=document.environment, driver="live", cards=cards)
    return [*mask_checks(machine), *environment_checks(judged)]
