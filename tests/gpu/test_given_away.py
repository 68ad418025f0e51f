"""On a GPU: tensors whose memory the training gave away cost their own reading; a fault there would end the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Config
from floatscope._guard import Guard, swallowed
from floatscope._memory import MemorySink
from floatscope._stats import Rows, Variant
from floatscope._stats._bounds import has_memory
from tests.variants import CASES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device; torch sees none")

EVERYTHING = Config(activations_every=1, histograms_every=1, weights_every=1, updates_every=1, overhead_budget=0)
ON_CARDS = [name for name, case in CASES.items() if case.device == "cuda"]


@pytest.fixture(scope="module", params=ON_CARDS or ["none"])
def variant(request: pytest.FixtureRequest) -> Variant:
    return CASES[request.param].make()


@pytest.fixture
def exceptions_stay() -> Iterator[None]:
    before, Guard.reraise = Guard.reraise, False
    yield
    Guard.reraise = before


def shrunk(tensor: torch.Tensor, left: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize("left", [0, 64])
def test_no_variant_reads_beyond_a_storage(variant: Variant, left: int) -> None:
    rows = Rows(2, "cuda")
    whole = torch.ones(1 << 20, device="cuda")
    plan = variant.plan((0, 1))
    plan.run(rows, [whole, torch.ones(1 << 20, device="cuda")], histogram=True)
    rows.words.zero_()
    rows.hist.zero_()
    away = shrunk(torch.ones(1 << 24, device="cuda"), left)
    assert not has_memory(away)
    for tensors in ([whole, away], [shrunk(whole, left), away]):
        with pytest.raises(ValueError, match="beyond its storage"):
            plan.run(rows, tensors, histogram=True)
    with pytest.raises(ValueError, match="beyond its storage"):
        variant.measure(away, rows.words[0], rows.hist[0])
    torch.cuda.synchronize()
    # The same plan goes on with what has its memory. Variants that go tensor by tensor may have read the first.
    rows.words.zero_()
    rows.hist.zero_()
    plan.run(rows, [torch.ones(1 << 20, device="cuda")] * 2, histogram=True)
    assert rows.hist.sum(1).tolist()[0] > 0


@pytest.mark.usefixtures("exceptions_stay")
def test_a_training_that_frees_memory_by_hand() -> None:
    before = sum(swallowed().values())
    torch.manual_seed(0)
    first, second = nn.Linear(512, 512, device="cuda"), nn.Linear(512, 4, device="cuda")
    model, sink = nn.Sequential(first, second), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(2, 512, device="cuda")
    with floatscope.watch(model, optimizer, config=EVERYTHING, _sink=sink) as scope:
        for step in range(4):
            optimizer.zero_grad()
            model(x).sum().backward()
            gradient = first.weight.grad
            assert gradient is not None
            if step == 2:
                kept = gradient.clone()
                shrunk(gradient, 0)
                scope._gradients.read_optimizer(optimizer, loss_scaled=False)
                gradient.untyped_storage().resize_(kept.nbytes)
                gradient.copy_(kept)
            optimizer.step()
            scope.step()
        torch.cuda.synchronize()
        reasons = scope.coverage["reasons"]
    assert sum(swallowed().values()) <= before + 1  # the list of gradients, once
    for step in (0, 1, 3):
        row = sink.row(step, "grad", "0")
        assert row is not None
        assert row["count"] == 512 * 512 + 512
    assert any(reason.startswith("grad not observed") for reason in reasons), reasons
