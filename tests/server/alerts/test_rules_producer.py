"""Where a NaN came from, as an interval in the order of execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from floatscope import wire
from floatscope_server.rules.producer import Evidence, Producer, enclosing, find
from floatscope_server.rules.tensors import LayerTable, Rows

NAMES = ("emb", "h.0.attn.qkv", "h.0.attn.out", "h.0.mlp.up", "h.0.mlp.down", "head")


@dataclass(frozen=True)
class Case:
    """Layers by index: ``seen`` per kind what was recorded, ``bad`` what of it was not finite."""

    seen: Mapping[str, set[int]]
    bad: Mapping[str, set[int]]
    weights: Mapping[int, int] = field(default_factory=dict)
    loss_nonfinite: bool = True
    reduced: bool = False
    names: tuple[str, ...] = NAMES
    order: tuple[int, ...] = tuple(range(len(NAMES)))
    parameters: int = 10


def _find(case: Case) -> Producer | None:
    layers = {
        i: wire.Layer(index=i, name=name, module_type="M", parameters=case.parameters, order=case.order[i])
        for i, name in enumerate(case.names)
    }
    size = len(layers)
    rows, broken = {}, {}
    nothing, missing = np.zeros(size, np.int64), np.full(size, np.nan)
    for kind, seen in case.seen.items():
        observed = np.isin(np.arange(size), list(seen))
        mask = np.isin(np.arange(size), list(case.bad.get(kind, set())))
        rows[kind] = Rows(
            kind=kind,
            layers=np.arange(size),
            part=nothing,
            observed=observed,
            nans=mask.astype(np.int64),
            infs=nothing,
            nonfinite=mask,
            amax=np.ones(size),
            scale=np.ones(size),
            under=missing,
            floor=missing,
            zeros=missing,
            rms=missing,
        )
        broken[kind] = mask
    weights = np.array([case.weights.get(i, -1) for i in range(size)])
    evidence = Evidence(
        rows=rows, broken=broken, weights=weights, loss_nonfinite=case.loss_nonfinite, reduced=case.reduced
    )
    return find(LayerTable(layers), evidence)


ALL = set(range(6))
CASES: dict[str, tuple[Case, tuple[object, ...] | None]] = {
    # (first, after, tensor, alone, inside, how, certainty)
    "inputs and parameters were finite": (
        Case({"act": ALL, "act_in": ALL}, {"act": {3, 4, 5}, "act_in": {4, 5}}, weights={3: 1}),
        (3, 2, "act", True, None, "module", 3),
    ),
    "parameters are not known": (
        Case({"act": ALL, "act_in": ALL}, {"act": {3, 4, 5}, "act_in": {4, 5}}),
        (3, 2, "act", False, "h.0.mlp.up", "module", 3),
    ),
    "a module without parameters": (
        Case({"act": ALL, "act_in": ALL}, {"act": {3, 4, 5}, "act_in": {4, 5}}, parameters=0),
        (3, 2, "act", True, None, "module", 3),
    ),
    "the input was not recorded": (
        Case({"act": ALL}, {"act": {4, 5}}, weights={4: 1}),
        (4, 3, "act", False, "h.0.mlp", "between", 3),
    ),
    "the parameters were bad already": (
        Case({"act": ALL, "act_in": ALL}, {"act": {3, 4, 5}, "act_in": {4, 5}}, weights={3: 0}),
        (3, 2, "act", False, "h.0.mlp.up", "parameters", 3),
    ),
    "a functional operation between two modules": (
        Case({"act": ALL, "act_in": ALL}, {"act": {2, 3, 4, 5}, "act_in": {2, 3, 4, 5}}, weights={2: 1}),
        (2, 1, "act_in", False, "h.0.attn", "between", 3),
    ),
    "the first module": (
        Case({"act": ALL}, {"act": ALL}),
        (0, None, "act", False, None, "between", 3),
    ),
    "in the loss": (Case({"act": ALL}, {}), (None, 5, "loss", False, None, "loss", 3)),
    "a container numbered before what is in it": (
        Case(
            {"act": {0, 1, 2}, "act_in": {1, 2}},
            {"act": {0, 2}},
            names=("h", "h.up", "h.down"),
            order=(0, 1, 2),
            weights={2: 1},
        ),
        (2, 1, "act", True, None, "module", 3),
    ),
    "a container numbered after what is in it": (
        Case(
            {"act": {0, 1, 2}, "act_in": {0, 1}},
            {"act": {1, 2}},
            names=("h.up", "h.down", "h"),
            order=(0, 1, 2),
            weights={1: 1},
        ),
        (1, 0, "act", True, None, "module", 3),
    ),
    "backward inside a module": (
        Case(
            {"act": ALL, "act_in": ALL, "act_grad": ALL, "grad": ALL},
            {"grad": {0, 1, 2, 3}, "act_grad": {0, 1, 2}},
            loss_nonfinite=False,
        ),
        (3, 4, "grad", True, None, "module", 2),
    ),
    "backward between two modules": (
        Case({"act_grad": ALL, "grad": ALL}, {"grad": {0, 1, 2, 3}, "act_grad": {0, 1, 2, 3}}, loss_nonfinite=False),
        (3, 4, "act_grad", False, "h.0.mlp", "backward", 2),
    ),
    "only gradients": (
        Case({"grad": ALL}, {"grad": {0, 1, 2}}, loss_nonfinite=False),
        (2, None, "grad", False, None, "not_later_than", 1),
    ),
    "gradients that other ranks had a part in": (
        Case({"grad": ALL, "act_grad": ALL}, {"grad": ALL}, loss_nonfinite=False, reduced=True),
        (5, None, "grad", False, None, "not_later_than", 1),
    ),
    "gradients of several ranks, seen before the reduction": (
        Case({"grad": ALL, "act_grad": ALL}, {"grad": ALL, "act_grad": {0, 1}}, loss_nonfinite=False, reduced=True),
        (1, 2, "act_grad", False, "h.0.attn", "backward", 2),
    ),
    "nothing recorded": (Case({}, {}), None),
    "everything sound": (Case({"act": ALL, "grad": ALL}, {}, loss_nonfinite=False), None),
}


@pytest.mark.parametrize("name", CASES)
def test_producer(name: str) -> None:
    case, expected = CASES[name]
    found = _find(case)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        got = (found.first, found.after, found.tensor, found.alone, found.inside, found.how, found.certainty)
        assert got == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("h.0.attn.q", "h.0.mlp", "h.0"), ("h.0", "h.1", "h"), ("emb", "head", None), ("h.10.a", "h.1.a", "h")],
)
def test_enclosing(first: str, second: str, expected: str | None) -> None:
    assert enclosing(first, second) == expected
