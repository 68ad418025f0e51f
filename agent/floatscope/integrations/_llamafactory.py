"""What LLaMA-Factory knows beyond the arguments of the Trainer that it uses."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from floatscope._patches import observe
from floatscope.integrations._arguments import of_dataclass

__all__ = ["arguments", "facts", "observe_arguments"]

_TUNER = "llamafactory.train.tuner"
_GROUPS = ("model_args", "data_args", "training_args", "finetuning_args", "generating_args")
"""What its ``get_train_args`` returns."""
_LOG = "trainer_log.jsonl"
_parsed: dict[str, Any] = {}


class _Parsing:
    """Sees ``get_train_args(args)``."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:  # noqa: ANN401
        _parsed.clear()
        _parsed.update(zip(_GROUPS, result, strict=True))


_observed: list[object] = []


def observe_arguments() -> None:
    """Remember what LLaMA-Factory parses from now on, where it is imported. Once for the process: it parses once."""
    tuner = sys.modules.get(_TUNER)
    if tuner is not None and "get_train_args" in vars(tuner) and not _observed:
        _observed.append(observe(tuner, "get_train_args", _Parsing()))


def arguments(args: object) -> dict[str, dict[str, object]]:
    """All that LLaMA-Factory was told, by group; empty where ``args`` are not those that it has parsed."""
    if _parsed.get("training_args") is not args:
        return {}
    return {f"llamafactory.{name}": of_dataclass(_parsed[name]) for name in _GROUPS if name != "training_args"}


def facts(args: object) -> dict[str, object]:
    """What joins the run's configuration, empty where ``args`` are not those that LLaMA-Factory has parsed."""
    if _parsed.get("training_args") is not args:
        return {}
    finetuning, model, data = (_parsed[name] for name in ("finetuning_args", "model_args", "data_args"))
    found: dict[str, object] = {
        "framework": {"name": "llamafactory", "version": _version()},
        "stage": finetuning.stage,
        "finetuning_type": finetuning.finetuning_type,
        "template": data.template,
        "log": str(Path(_parsed["training_args"].output_dir) / _LOG),
    }
    if finetuning.pure_bf16:
        found["declared_precision"] = "pure bf16"
    if model.quantization_bit is not None:
        found["quantization_bit"] = model.quantization_bit
    return found


def _version() -> str:
    try:
        return version("llamafactory")
    except PackageNotFoundError:
        return "unknown"  # from a checkout that is on the path
