"""What a DeepSpeed engine tells of the training that it is a part of, whoever drives it."""

from __future__ import annotations

import sys
from typing import Any

from floatscope._placement import engines
from floatscope.integrations._arguments import plain

__all__ = ["is_engine", "of_engine"]


def is_engine(model: object) -> bool:
    """Whether ``model`` is what ``deepspeed.initialize`` has returned."""
    return isinstance(model, getattr(sys.modules.get("deepspeed"), "DeepSpeedEngine", ()))


def of_engine(engine: Any) -> tuple[dict[str, object], dict[str, object]]:  # noqa: ANN401
    """Facts and arguments for the configuration of a run that watches the model inside ``engine``."""
    # Of what ZeRO does not spread the engine alone knows the ranks; its own name before each layer's tells nothing.
    engines.add(engine)
    config = engine.config
    facts: dict[str, object] = {
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "zero_stage": engine.zero_optimization_stage(),
    }
    return facts, {str(name): plain(value) for name, value in config.items()} if isinstance(config, dict) else {}
