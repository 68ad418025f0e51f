"""Names of series: from those that files print to those that the rules know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from floatscope_server.rules.record import has_reward_keys

__all__ = ["canonical", "meaning"]

_CANONICAL = {
    "loss": "loss lm_loss train/loss train/loss_step loss/train training/loss training_loss train/lm_loss total_loss"
    " loss_train train_loss_step actor/pg_loss",
    "eval_loss": "eval_loss eval/loss validation_lm_loss validation_loss val_loss val/loss valid_loss loss/val"
    " loss/valid lm_loss_validation test_loss",
    "grad_norm": "grad_norm train/grad_norm gradient_norm global_grad_norm total_grad_norm train/global_grad_norm"
    " norm actor/grad_norm",
    "lr": "lr learning_rate train/learning_rate train/lr actor/lr",
    "loss_scale": "loss_scale train/loss_scale",
}
"""Rule's name -> what files print, lower case, with underscores."""
_BY_NAME = {name: rule for rule, names in _CANONICAL.items() for name in names.split()}
_STEP_TIME = {
    "elapsed_time_per_iteration_(ms)": 1e-3,
    "elapsed_time_per_iteration(ms)": 1e-3,
    "elapsed_time_per_iteration_(s)": 1.0,
    "seconds_per_step": 1.0,
    "iter_time_(s)": 1.0,
    "iteration_time": 1.0,
    "iteration_time_(ms)": 1e-3,
    "timing_s/step": 1.0,
}
_EVAL_LOSS = re.compile(r"eval[_/].+_loss")
"""Of one of several evaluation sets."""


@lru_cache(maxsize=8192)
def canonical(name: str) -> tuple[str, float] | None:
    """The rules' name of the series that a file calls ``name`` and the factor to its unit, None where no rule reads it.
    Series of a reward keep their name: that there is one says what kind of run it is."""
    plain = re.sub(r"[\s_-]+", "_", name.strip().lower())
    if plain in _STEP_TIME:
        return "step_time_s", _STEP_TIME[plain]
    if plain in _BY_NAME:
        return _BY_NAME[plain], 1.0
    if _EVAL_LOSS.fullmatch(plain):
        return "eval_loss", 1.0
    return (name, 1.0) if has_reward_keys([name]) else None


def meaning(values: Mapping[str, float]) -> dict[str, float]:
    """``values`` under the rules' names and in their units; of two with one name the first counts."""
    found: dict[str, float] = {}
    for name, value in values.items():
        known = canonical(name)
        if known is not None and known[0] not in found:
            found[known[0]] = value * known[1]
    return found
