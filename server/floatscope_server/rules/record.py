"""The scalars of one step of one rank, under the names that the rules use."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from floatscope import wire

__all__ = [
    "EVAL_LOSS",
    "GRAD_NORM",
    "LOSS",
    "LOSS_SCALE",
    "LR",
    "STEP_TIME",
    "Record",
    "has_reward_keys",
    "has_sound_loss",
    "main_value",
    "record_of",
    "scalars_by_step",
]

# Names of a series, the first of those that are there counts.
LOSS = ("loss", "lm loss", "train/loss", "train_loss")
# Where a user logs a series of a name that the agent has too, the agent's is called floatscope/NAME.
GRAD_NORM = ("floatscope/grad_norm", "grad_norm", "grad norm", "train/grad_norm")
LOSS_SCALE = ("floatscope/loss_scale", "loss_scale", "loss scale")
EVAL_LOSS = ("eval_loss", "eval/loss", "validation lm loss", "val_loss")
LR = ("lr", "learning_rate", "learning rate", "train/learning_rate")
STEP_TIME = ("step_time_s", "seconds_per_step", "elapsed_s")
_REWARD_PARTS = ("reward", "advantage")
_REWARD_NAMES = frozenset({"kl", "approx_kl", "objective/kl", "policy/approxkl_avg", "zero_std_ratio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record; None is "not measured", which is neither 0 nor NaN.

    ``grad_norm`` is unscaled and from before clipping. ``skipped`` says whether a scaler skipped the optimizer step.
    ``raw_loss_nonfinite`` counts the micro-batches whose loss was not finite. ``grad_nan`` and ``grad_inf`` tell what
    the gradients themselves held, None where they were not observed. ``loss_absent``: a log that prints its loss at
    every step left it out here. ``clip_coef`` is what the gradients were multiplied with, 1 where they were not
    clipped. ``at_minimum``: the scaler said that it cannot lower its scale any further.
    """

    step: int
    loss: float | None = None
    eval_loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    skipped: bool | None = None
    raw_loss_nonfinite: int = 0
    grad_nan: bool | None = None
    grad_inf: bool | None = None
    loss_absent: bool = False
    lr: float | None = None
    step_time_s: float | None = None
    clip_coef: float | None = None
    at_minimum: bool = False

    @property
    def loss_nonfinite(self) -> bool:
        """Whether the loss, as logged or of any micro-batch, was not finite."""
        return self.raw_loss_nonfinite > 0 or (self.loss is not None and not math.isfinite(self.loss))


def has_reward_keys(names: Iterable[str]) -> bool:
    """Whether a run that logs ``names`` optimises a reward (GRPO, PPO): its loss is near 0 by construction."""
    return any(name in _REWARD_NAMES or any(part in name for part in _REWARD_PARTS) for name in names)


def scalars_by_step(scalars: Iterable[wire.Scalars]) -> dict[int, dict[str, float]]:
    """The series of a body turned to one mapping of names to values for each step, in order of steps."""
    found: dict[int, dict[str, float]] = {}
    for series in scalars:
        steps = np.frombuffer(series.steps, dtype="<i8").tolist()
        values = np.frombuffer(series.values, dtype="<f8").tolist()
        for step, value in zip(steps, values, strict=True):
            found.setdefault(step, {})[series.name] = value
    return dict(sorted(found.items()))


def _first(scalars: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((scalars[name] for name in names if name in scalars), None)


def main_value(scalars: Mapping[str, float], names: Sequence[str], seen: Collection[str]) -> float | None:
    """The first of ``names`` that the run logs: beside "loss" a "train_loss" is the mean of a whole training."""
    for name in names:
        if name in scalars:
            return scalars[name]
        if name in seen:
            return None
    return None


def has_sound_loss(scalars: Mapping[str, float]) -> bool:
    """Whether a step logged a finite loss and no micro-batch's was otherwise."""
    loss = _first(scalars, LOSS)
    return loss is not None and math.isfinite(loss) and scalars.get("raw_loss_nonfinite", 0.0) == 0.0


def record_of(
    step: int,
    scalars: Mapping[str, float],
    *,
    skip_event: bool = False,
    at_minimum: bool = False,
    seen: Collection[str] = (),
    previous_scale: float | None = None,
    grad_nan: bool | None = None,
    grad_inf: bool | None = None,
) -> Record:
    """The record of ``step``.

    ``seen`` are the names that this run has logged before, ``previous_scale`` its last loss scale: where nothing says
    whether the step was skipped, a scale that fell does.
    """
    scale = main_value(scalars, LOSS_SCALE, seen)
    fell = scale is not None and previous_scale is not None and scale < previous_scale
    skipped: bool | None = None
    if skip_event or "skipped" in scalars:
        skipped = skip_event or scalars["skipped"] > 0
    elif scale is not None:
        skipped = fell
    raw = scalars.get("raw_loss_nonfinite", 0.0)
    return Record(
        step=step,
        loss=main_value(scalars, LOSS, seen),
        eval_loss=_first(scalars, EVAL_LOSS),
        grad_norm=main_value(scalars, GRAD_NORM, seen),
        loss_scale=scale,
        skipped=skipped,
        raw_loss_nonfinite=int(raw) if math.isfinite(raw) else 0,
        grad_nan=grad_nan,
        grad_inf=grad_inf,
        loss_absent="lm loss" in seen
        and "lm loss" not in scalars
        and scalars.get("grad norm", 0.0) != 0.0
        and not (fell or skipped),
        lr=_first(scalars, LR),
        step_time_s=_first(scalars, STEP_TIME),
        clip_coef=scalars.get("clip_coef"),
        at_minimum=at_minimum,
    )
