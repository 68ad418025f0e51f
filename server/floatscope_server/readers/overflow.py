"""What loss scalers of DeepSpeed and Apex say, and DeepSpeed's own progress lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from floatscope_server.readers.text import number, whole

__all__ = ["Overflow", "at_minimum", "engine_step", "overflow", "stamped"]

_FORMS = (
    # loss_scaler.py, stage_1_and_2.py, stage2.py, stage3.py, fused_optimizer.py
    # and unfused_optimizer.py in lower case
    re.compile(
        r"overflow!.*?Attempted loss scale: *([-+\w.]+?), *(?:reducing to ([-+\w.]+)|but hysteresis is)", re.IGNORECASE
    ),
    re.compile(r"Reducing dynamic loss scale from ([-+\w.]+) to ([-+\w.]+)"),
    re.compile(r"Gradient overflow\. +Skipping step,()? loss scaler \d+ reducing loss scale to ([-+\w.]+)"),
)
_BARE = re.compile(r"\[deep(?:speed|scale)\] OVERFLOW! Rank \d+ Skipping step\.\s*$")
_MINIMUM = re.compile(r"loss scale already at minimum", re.IGNORECASE)
_STEP = re.compile(r"\bstep=(\d+), skipped=(\d+), lr=\[([^\],]*)")
_PIPELINE = re.compile(r"\bsteps: (\d+) loss: ([-+\w.]+) iter time \(s\): ([-+\w.]+)")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d{3})\]")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A skipped step. ``scale`` is the one after it, lower than that before unless hysteresis kept it; None where the
    line does not say, as in bf16."""

    scale: float | None


def overflow(text: str) -> Overflow | None:
    """The overflow that ``text`` tells of."""
    if "verflow" not in text and "OVERFLOW" not in text and "Reducing dynamic" not in text:
        return None
    for form in _FORMS:
        if found := form.search(text):
            before, after = found.groups()
            return Overflow(number((after or before).rstrip(".")))
    return Overflow(None) if _BARE.search(text) else None


def at_minimum(text: str) -> bool:
    """Whether the scaler gives up."""
    return "minimum" in text and _MINIMUM.search(text) is not None


def engine_step(text: str) -> tuple[int, dict[str, float]] | None:
    """The step and what DeepSpeed's engine prints of it every so many steps."""
    if "skipped=" in text and (found := _STEP.search(text)):
        step, skipped, lr = found.groups()
        values = {"skipped_steps": float(skipped)}
        if (rate := number(lr)) is not None:
            values["lr"] = rate
        return whole(step), values
    if "iter time (s)" in text and (found := _PIPELINE.search(text)):
        loss, seconds = number(found[2]), number(found[3])
        if loss is not None and seconds is not None:
            return whole(found[1]), {"loss": loss, "iter time (s)": seconds}
    return None


def stamped(text: str) -> float | None:
    """The time of day of a line in seconds since 1970, as if the clock were UTC's."""
    found = _STAMP.search(text)
    if found is None:
        return None
    try:
        moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None  # no date
    return moment.timestamp() + int(found[2]) / 1000
