"""Outputs that wait to be measured together, and what may happen to them meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

import floatscope
from floatscope import Scope
from floatscope._backend import Backend
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._stats import Reference
from floatscope._summary import Summary
from tests.agent.rows_on_the_host import Runs, like_a_card

Attach = Callable[..., tuple[Scope, MemorySink]]

EVERY = floatscope.Config(activations_every=1, histograms_every=1, weights_every=1, updates_every=0)
X = torch.arange(8.0).reshape(2, 4)


def assert_row(row: dict[str, float] | None, want: Summary) -> None:
    assert row is not None
    assert (row["count"], row["zeros"], row["absmax"]) == (want.count, want.zeros, want.absmax)
    assert row["sumsq"] == pytest.approx(want.sumsq, rel=1e-9)


def test_one_run_for_a_forward_pass_one_for_its_backward_pass_and_one_for_the_gradients(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    variant = Runs()
    scope, sink = attach(
        model, optimizer, config=EVERY, weights_every=0, _backend=like_a_card(variant=lambda _: variant)
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
        scope.step()
    # 3 outputs and 2 inputs; then 2 gradients of outputs, at the read point; then those of the 6 parameters.
    assert variant.runs == [5, 8] + [5, 6, 2] * 2
    assert variant.alone == 0
    assert variant.plans == 4, "rows keep their places"
    assert {rows.kind for rows in sink.records()[2].summaries} == {"act", "act_in", "act_grad", "grad"}


def test_what_is_changed_before_it_was_read_is_left_out_once_and_then_read_at_once(attach: Attach) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    variant = Runs()
    scope, sink = attach(model, config=EVERY, weights_every=0, _backend=like_a_card(variant=lambda _: variant))
    for _ in range(2):
        model(X).sum().backward()
        scope.step()
    assert sink.row(0, "act", "0") is None
    assert sink.row(0, "act", "2") is not None
    assert scope.coverage["reasons"]["act not observed: changed in place before it was read"] == ["0"]
    assert variant.alone == 1
    assert_row(sink.row(1, "act", "0"), floatscope.summarize(model[0](X)))


@pytest.mark.parametrize("how", ["resized", "other memory"])
def test_memory_that_was_taken_away_is_not_read(attach: Attach, how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    scope, sink = attach(model, config=EVERY, _backend=like_a_card())
    with torch.no_grad():
        # The layer alone: the end of the model's forward pass would read it.
        out = model[0](X)
        if how == "resized":
            out.untyped_storage().resize_(0)
        else:
            out.data = torch.full((2, 4), 9.0)
    scope.step()
    assert sink.row(0, "act", "0") is None
    assert sink.row(0, "act_in", "0") is not None
    assert "act not observed: changed in place before it was read" in scope.coverage["reasons"]


def test_waiting_is_bounded_in_bytes(attach: Attach) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    variant = Runs()
    scope, _ = attach(
        model, config=EVERY, weights_every=0, _backend=like_a_card(variant=lambda _: variant, batch_bytes=3 * X.nbytes)
    )
    with torch.no_grad():
        model(X)
    scope.step()
    assert variant.runs == [3, 3, 2]


def test_outputs_are_released_when_the_forward_pass_or_the_step_ends(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    variant = Runs()
    scope, _ = attach(model, config=EVERY, weights_every=0, _backend=like_a_card(variant=lambda _: variant))
    model(X)
    assert variant.runs == [4], "at the end of the model's forward pass"
    out = model[1](model[0](X))
    assert variant.runs == [4]
    out.sum().backward()
    assert variant.runs == [4, 4], "at the first hook of a backward pass"
    scope.step()
    assert variant.runs == [4, 4, 2], "at the end of the step"


def test_inference_tensors_are_read_at_once(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    variant = Runs()
    scope, sink = attach(model, config=EVERY, weights_every=0, _backend=like_a_card(variant=lambda _: variant))
    with torch.inference_mode():
        out = model[0](X)
        out.fill_(7.0)
    scope.step()
    row = sink.row(0, "act", "0")
    assert row is not None
    assert row["count"] == 8
    assert row["absmax"] != 7.0
    assert (variant.alone, variant.runs) == (1, [1]), "the input is an ordinary tensor"


def test_a_row_never_takes_more_elements_than_its_bins_can_count(attach: Attach) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = like_a_card(row_elements=10)
    scope, sink = attach(model, optimizer, config=EVERY, _backend=chosen)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            model(X).square().sum().backward()
        gradients = [
            floatscope.summarize([p.grad for p in layer.parameters() if p.grad is not None]) for layer in model
        ]
        optimizer.step()
        parts = scope._recorder.parts
        assert len(parts) > len({(part.kind, part.layer) for part in parts})
        scope.step()
        for number, want in enumerate(gradients):
            assert_row(sink.row(len(sink.pending) - 1, "grad", str(number)), want)
    for pending in scope._recorder._devices.values():
        assert not pending.parts()
    row = sink.row(0, "act_in", "0")
    assert row is not None
    assert row["count"] == 24
    hist = sink.hist(0, "act_in", "0")
    assert hist is not None
    assert hist.sum() == 21
    assert sink.scalar("grad_norm")[1] is not None


class Refusing(Reference):
    """Raises for tensors of three rows."""

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        if tensor.shape[0] == 3:
            raise RuntimeError("not this one")
        super().measure(tensor, words, hist)


def test_a_run_that_fails_costs_its_company_once_and_the_culprit_always(
    attach: Attach, caplog: pytest.LogCaptureFixture
) -> None:
    Guard.reraise = False
    caplog.set_level(logging.CRITICAL, "floatscope")
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen: Backend = like_a_card(variant=lambda _: Refusing())
    scope, sink = attach(model, optimizer, config=EVERY, _backend=chosen)
    for _ in range(4):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
        scope.step()
    counts = [row["count"] if (row := sink.row(n, "grad", "1")) is not None else None for n in range(4)]
    assert counts == [None, 8, 8, 8]
    assert sink.row(0, "act", "1") is not None
    assert scope.coverage["reasons"]["grad not observed: it could not be measured"] == ["0", "1"]


def test_the_first_tensor_of_a_step_decides_the_format_of_its_layer(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    scope, sink = attach(model, config=EVERY, weights_every=0, _backend=like_a_card())
    for _ in range(3):
        # The same layer gives bfloat16 under autocast, and float32 without.
        with torch.autocast("cpu", torch.bfloat16):
            model(X)
        model(X)
        scope.step()
    first = {operand.kind: operand.format for layer in sink.records()[0].layers[:1] for operand in layer.operands}
    assert first["act"] == "bf16"
    assert [len(record.layers) for record in sink.records()] == [2, 0, 0], "told once"
    row = sink.row(2, "act", "0")
    assert row is not None
    assert row["count"] == 16


def test_rows_are_those_of_a_pass_whether_or_not_its_list_is_known(attach: Attach) -> None:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Linear(4, 4), shared)
    variant = Runs()
    scope, sink = attach(model, config=EVERY, weights_every=0, _backend=like_a_card(variant=lambda _: variant))
    for micro_batches in (1, 1, 3, 2, 1):
        outputs = []
        for _ in range(micro_batches):
            inputs = X[torch.randint(0, 2, (5,))]
            hidden = shared(inputs)
            outputs += [hidden, shared(model[1](hidden))]
            model(inputs).sum().backward()
        scope.step()
        row = sink.row(len(sink.pending) - 1, "act", "0")
        # Those of the whole pass, and of its layers before.
        assert_row(row, floatscope.summarize([*outputs, *outputs]))
    assert variant.alone == 0


def test_a_hook_of_the_user_on_the_same_output_comes_and_goes(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    scope, sink = attach(model, config=EVERY, weights_every=0, _backend=like_a_card())
    seen: list[torch.Tensor] = []
    out = model(X)
    out.register_hook(seen.append).remove()
    out.register_hook(seen.append)
    out.sum().backward()
    scope.step()
    assert len(seen) == 1
    assert_row(sink.row(0, "act_grad", "0"), floatscope.summarize(seen[0]))
