"""What optimizers and loss scalers are set to, as a run's configuration tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from floatscope._record import encodable

__all__ = ["optimizer_facts", "scaler_facts"]

_MOST_OPTIONS = 50


def optimizer_facts(optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, object]:
    """``optimizers``, their types, and ``optimizer``: the options of each by its type, the second one's as "AdamW 2".

    An option that differs between groups of parameters is a list with an entry per group. What is no number, flag or
    list of such is left out, as is a tensor on a device, which would have to be waited for.
    """
    names: list[str] = []
    options: dict[str, object] = {}
    for optimizer in optimizers:
        name = encodable(type(optimizer).__name__)
        names.append(name)
        count = names.count(name)
        options[name if count == 1 else f"{name} {count}"] = _options(optimizer.param_groups)
    return {"optimizers": names, **({"optimizer": options} if options else {})}


def scaler_facts(scaler: object) -> dict[str, object]:
    """``scaler``, its type, and of torch's own ``scaler_options``, by which the loss scale grows and falls."""
    if scaler is None:
        return {"scaler": None}
    facts: dict[str, object] = {"scaler": encodable(type(scaler).__name__)}
    if isinstance(scaler, torch.amp.GradScaler):
        options: dict[str, object] = {"enabled": scaler.is_enabled()}
        if scaler.is_enabled():  # one that is not has none of these
            options["growth_factor"] = scaler.get_growth_factor()
            options["backoff_factor"] = scaler.get_backoff_factor()
            options["growth_interval"] = scaler.get_growth_interval()
        facts["scaler_options"] = {name: _plain(value) for name, value in options.items()}
    return facts


def _options(groups: Sequence[Mapping[Any, Any]]) -> dict[str, object]:
    names = dict.fromkeys(name for group in groups for name in group if isinstance(name, str) and name != "params")
    told: dict[str, object] = {}
    for name in list(names)[:_MOST_OPTIONS]:
        values = [_plain(group.get(name)) for group in groups]
        if any(value is not None for value in values):
            told[encodable(name)] = values[0] if all(value == values[0] for value in values) else values
    return told


def _plain(value: object) -> object:
    """A number, a flag or a list of such; None for anything else."""
    if isinstance(value, tuple | list):
        entries = [_plain(entry) for entry in value[:_MOST_OPTIONS]]
        return None if None in entries else entries
    # Not of its subclasses, which may have no element to ask for.
    if type(value) is torch.Tensor and value.device.type == "cpu" and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else float(value)
    return float(value) if isinstance(value, float) else None
