"""The sender of one attachment: under which name it speaks, and what it says of the run."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from torch import nn

from floatscope import wire
from floatscope._attach.declared import declared, versions
from floatscope._config import Config
from floatscope._optimizer_facts import optimizer_facts, scaler_facts
from floatscope._placement import rank_and_world
from floatscope._record import Sink, encodable
from floatscope._run_name import run_name
from floatscope._stats import variant_for, why

__all__ = ["description", "fitting", "sender_for"]

_MOST_BYTES = wire.MAX_BLOCK_BYTES // 4
"""Of a configuration, encoded, as a server takes it."""


def sender_for(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: object,
    config: Config,
    facts: Mapping[str, object],
) -> Sink:
    """One that speaks to the server of ``config``; ``NoThreadError`` where it cannot have threads.

    ``facts`` are what a framework knows of the training, as plain data.
    """
    from floatscope._devices import LocalDevices
    from floatscope._doctor._attached import verdicts_of_this_process
    from floatscope._doctor._optimizer import optimizer_verdicts
    from floatscope._doctor._verdict import as_json
    from floatscope._flight import FlightRecorder
    from floatscope._sender import Limits, Sender
    from floatscope._spool._spooler import SpoolPlace

    rank, world = rank_and_world()
    identity = wire.Identity(
        run=config.run or run_name(world, os.environ),
        writer=uuid.uuid4().hex,
        rank=rank,
        world=world,
        started_ns=time.time_ns(),
    )
    assert config.server is not None, "configured() gives every option a value"
    assert config.spool_dir is not None, "configured() gives every option a value"
    # Absolute: a training may change its working directory.
    place = SpoolPlace(directory=Path(config.spool_dir).expanduser().absolute(), max_bytes=config.spool_bytes)
    told = fitting({**description(model, optimizers, scaler, config), **facts})
    return Sender(
        identity,
        config.server,
        config.token,
        told,
        limits=Limits(pending_records=config.queue_records, pending_bytes=config.queue_bytes),
        devices=LocalDevices(),
        flight=FlightRecorder(
            max_steps=config.flight_recorder_steps, max_bytes=config.flight_recorder_bytes, rank=rank
        ),
        spool=place if config.spool_bytes else None,
        judge=lambda: [*as_json(optimizer_verdicts(told)), *verdicts_of_this_process()],
    )


def description(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], scaler: object, config: Config
) -> dict[str, object]:
    """What the server shows as the run's configuration: plain data, without the token."""
    return {
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "model": encodable(type(model).__name__),
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": _trainable(model),
        **optimizer_facts(optimizers),
        **scaler_facts(scaler),
        "statistics": _statistics(model),
        "gradients_every": config.gradients_every,
        "activations_every": config.activations_every,
        "weights_every": config.weights_every,
        "updates_every": config.updates_every,
        "histograms_every": config.histograms_every,
        "overhead_budget": config.overhead_budget,
        "versions": versions(),
        **declared(),
    }


def _trainable(model: nn.Module) -> dict[str, int]:
    """Elements by dtype of the parameters that get gradients."""
    elements: Counter[str] = Counter()
    for parameter in model.parameters():
        if parameter.requires_grad:
            elements[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(elements)


def fitting(told: Mapping[str, object]) -> dict[str, object]:
    """``told``, plain data, without as many of its largest entries as a server would refuse it for."""
    fits = dict(told)
    sizes = {name: len(msgspec.msgpack.encode(value)) + len(name) + 8 for name, value in told.items()}
    while sum(sizes.values()) > _MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        fits[largest] = {"left out": f"{sizes[largest] >> 10} KiB, with which there would be too much"}
        sizes[largest] = 80 + len(largest)
    return fits


def _statistics(model: nn.Module) -> dict[str, str]:
    """What computes the statistics on each of the model's devices, and why."""
    devices = {p.device for p in model.parameters() if p.device.type != "meta"}
    return {str(device): f"{variant_for(device).name} ({why(device)})" for device in sorted(devices, key=str)}
