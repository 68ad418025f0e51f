"""Tensors whose memory the training gave away: they cost their own reading, not the process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from floatscope import Scope
from floatscope._backend import Backend
from floatscope._guard import Guard, swallowed
from floatscope._memory import MemorySink
from floatscope._stats import Reference, Rows, Variant
from floatscope._stats._bounds import has_memory
from floatscope._stats._cpu import Cpu
from floatscope._stats._layout import spans
from tests.agent.rows_on_the_host import like_a_card

Attach = Callable[..., tuple[Scope, MemorySink]]


def given_away(tensor: torch.Tensor, left: int = 0) -> torch.Tensor:
    """``tensor`` with so many bytes of its storage left."""
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize(
    ("make", "bytes_of_it"),
    [
        (lambda: torch.ones(4, 8), 128),
        (lambda: torch.ones(4, 8).t(), 128),
        (lambda: torch.ones(4, 8)[2:], 128),
        (lambda: torch.ones(4, 8)[:, ::2], 4 * 31),
        (lambda: torch.ones(1).expand(1000), 4),
        (lambda: torch.ones(64, dtype=torch.bfloat16)[3:40], 2 * 40),
    ],
    ids=["dense", "transposed", "offset", "strided", "expanded", "part"],
)
def test_how_far_a_tensor_reaches(make: Callable[[], torch.Tensor], bytes_of_it: int) -> None:
    assert has_memory(make())
    assert has_memory(given_away(make(), bytes_of_it))
    assert not has_memory(given_away(make(), bytes_of_it - 1))
    assert not has_memory(given_away(make()))


@pytest.mark.parametrize("variant", [Cpu(lambda: None), Cpu(), Reference()], ids=["host", "compiled", "reference"])
def test_no_variant_reads_beyond_a_storage(variant: Variant) -> None:
    rows = Rows(2, "cpu")
    with pytest.raises(ValueError, match="beyond its storage"):
        variant.plan((0, 1)).run(rows, [given_away(torch.ones(1 << 20), 64)] * 2, histogram=True)
    assert not rows.words.any()
    with pytest.raises(ValueError, match="beyond its storage"):
        list(spans(given_away(torch.ones(4))))


@pytest.mark.parametrize("chosen", [None, like_a_card()], ids=["on the host", "in batches"])
def test_a_training_that_frees_memory_by_hand(
    attach: Attach, chosen: Backend | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "reraise", False)
    before = sum(swallowed().values())
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.Sequential(first, second)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, activations_every=1, weights_every=1, updates_every=1, _backend=chosen)
    last = optimizer.register_step_pre_hook(lambda *_: None)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        gradient, weight = first.weight.grad, second.weight
        assert gradient is not None
        kept, kept_weight = gradient.clone(), weight.detach().clone()
        if step == 2:
            given_away(gradient)
            given_away(weight)
            torch.nn.utils.clip_grad_norm_([first.bias], 1.0)  # here all weights are read
            scope._gradients.read_optimizer(optimizer, loss_scaled=False)
            gradient.untyped_storage().resize_(kept.nbytes)
            weight.untyped_storage().resize_(kept.nbytes)
            gradient.copy_(kept)
            with torch.no_grad():
                weight.copy_(kept_weight)
        optimizer.step()
        scope.step()
    last.remove()
    assert sum(swallowed().values()) <= before + 1  # the list of gradients, once
    for step in (0, 1, 3):
        row = sink.row(step, "grad", "0")
        assert row is not None
        assert row["count"] == 20
    assert sink.row(2, "weight", "0") is not None
    reasons = scope.coverage["reasons"]
    assert any(reason.startswith("weight not observed: its memory") for reason in reasons), reasons
    assert any(reason.startswith("grad not observed") for reason in reasons), reasons


def test_gradients_that_keep_their_elements_elsewhere_are_no_address(attach: Attach) -> None:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.ones(4, 4)))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, _ = attach(model, optimizer, updates_every=1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scope.step()
    assert any("TwoTensor keeps its values" in reason for reason in scope.coverage["reasons"])
    assert not has_memory(TwoTensor(torch.ones(4), torch.ones(4)))  # type: ignore[no-untyped-call]
