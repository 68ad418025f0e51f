"""What a run's configuration says of optimizers and scalers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from floatscope._attach.attachment import attach
from floatscope._config import Config
from floatscope._optimizer_facts import optimizer_facts, scaler_facts
from floatscope._sending import description


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def test_options_that_decide_the_numbers(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)
    told = optimizer_facts([optimizer])
    assert told["optimizers"] == ["AdamW"]
    options = told["optimizer"]
    assert isinstance(options, dict)
    adam = options["AdamW"]
    assert (adam["lr"], adam["betas"], adam["eps"], adam["weight_decay"]) == (1e-3, [0.9, 0.95], 1e-8, 0.01)
    assert adam["fused"] is True
    assert "params" not in adam
    assert "foreach" not in adam, "None: torch decides"


def test_groups_that_differ_and_a_second_optimizer(model: nn.Module) -> None:
    first, second = model.children()
    groups: list[dict[str, Any]] = [{"params": first.parameters(), "lr": 0.5}, {"params": second.parameters()}]
    one = torch.optim.SGD(groups, lr=0.1)
    told = optimizer_facts([one, torch.optim.SGD(second.parameters(), lr=0.2)])
    assert told["optimizers"] == ["SGD", "SGD"]
    options = told["optimizer"]
    assert isinstance(options, dict)
    assert options["SGD"]["lr"] == [0.5, 0.1]
    assert options["SGD"]["momentum"] == 0
    assert options["SGD 2"]["lr"] == 0.2


class Odd(float):
    """A number of somebody's own."""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.tensor(0.25), 0.25),
        (torch.tensor(3), 3),
        (torch.ones(2), None),
        (torch.empty((), device="meta"), None),
        (torch.tensor(1j), None),
        (nn.Parameter(torch.tensor(1.0)), None),
        (Odd(0.5), 0.5),
        (1 << 70, float(1 << 70)),
        ("/home/somebody", None),
        (lambda: 1, None),
        ([1, [2.0, False]], [1, [2.0, False]]),
        ([1, "a"], None),
    ],
    ids=[
        *("tensor", "integer", "several", "meta", "complex", "parameter", "subclass", "large", "text", "function"),
        *("nested", "mixed"),
    ],
)
def test_only_numbers_and_flags(model: nn.Module, value: object, told: object) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group: dict[Any, Any] = optimizer.param_groups[0]
    group |= {"own": value, 3: 1.0}
    facts = optimizer_facts([optimizer])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts)) == facts
    assert json.dumps(facts)
    options = facts["optimizer"]
    assert isinstance(options, dict)
    assert options["SGD"].get("own") == told
    assert 3 not in options["SGD"]


def test_how_the_scale_grows_and_falls() -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=100, backoff_factor=0.25)
    assert scaler_facts(scaler) == {
        "scaler": "GradScaler",
        "scaler_options": {"growth_factor": 2.0, "backoff_factor": 0.25, "growth_interval": 100, "enabled": True},
    }
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert scaler_facts(off) == {"scaler": "GradScaler", "scaler_options": {"enabled": False}}
    assert scaler_facts(None) == {"scaler": None}
    assert scaler_facts(object()) == {"scaler": "object"}


def test_watch_tells_it(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = description(model, [optimizer], None, Config())
    options = told["optimizer"]
    assert isinstance(options, dict)
    assert options["SGD"]["lr"] == 0.1
    versions = told["versions"]
    assert isinstance(versions, dict)
    assert versions["torch"] == torch.__version__


def test_so_does_what_attaches(model: nn.Module) -> None:
    given: dict[str, object] = {}

    def watch(*_: object, **options: object) -> object:
        given.update(options)
        raise KeyError

    catching: Callable[..., object] = watch
    with pytest.raises(KeyError):
        attach([torch.optim.SGD(model.parameters(), lr=0.1)], model, [], catching)  # type: ignore[arg-type]
    facts = given["_facts"]
    assert isinstance(facts, dict)
    assert facts["optimizer"]["SGD"]["lr"] == 0.1
