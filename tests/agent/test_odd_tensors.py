"""A tensor or a name that cannot be handled costs its own reading, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import floatscope
from floatscope import Scope
from floatscope._backend import Backend
from floatscope._guard import Guard
from floatscope._memory import MemorySink
from floatscope._stats import Reference
from tests.agent.rows_on_the_host import like_a_card

Attach = Callable[..., tuple[Scope, MemorySink]]

EVERY = floatscope.Config(activations_every=1, weights_every=1)


class Odd(nn.Module):
    def __init__(self, output: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.output = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x * self.scale)  # type: ignore[return-value]


class Model(nn.Module):
    def __init__(self, output: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.odd = Odd(output)
        self.plain = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.odd(x)
        out: torch.Tensor = self.plain(x * self.odd.scale)
        return out


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("output", "why"),
    [
        (lambda y: y.detach().to("meta"), "a tensor on the meta device has no values"),
        (lambda y: torch.quantize_per_tensor(y.detach(), 0.1, 0, torch.quint8), "torch.quint8 is no format"),
        (lambda y: y.long(), "torch.int64 is no format"),
        (lambda y: torch.view_as_complex(y.detach().reshape(-1, 2)), "torch.complex64 is no format"),
        (lambda y: torch.nested.nested_tensor([y.detach()], layout=torch.jagged), "a nested tensor"),
        (lambda y: y.detach().to_mkldnn(), "torch._mkldnn"),
        (lambda y: TwoTensor(y.detach(), y.detach()), "TwoTensor keeps its values in other tensors"),  # type: ignore[no-untyped-call]
    ],
    ids=["meta", "quantised", "integer", "complex", "nested", "mkldnn", "wrapper"],
)
def test_an_output_that_cannot_be_measured(attach: Attach, output: Callable[[torch.Tensor], object], why: str) -> None:
    model = Model(output)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step(loss=1.0)
    for kind, layer in (("act", "plain"), ("grad", "plain"), ("grad", "odd"), ("weight", "odd")):
        assert sink.row(0, kind, layer) is not None, (kind, layer)
    reasons = [reason for reason, layers in scope.coverage["reasons"].items() if layers == ["odd"]]
    assert any(reason.startswith(f"act not observed: {why}") for reason in reasons), reasons


class Wrapped(torch.Tensor):
    """Its elements are in another tensor, as those of quantised weights or of a collective that is under way."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        assert isinstance(made, Wrapped)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self.held = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,  # noqa: ANN401
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[Any, Any] | None = None,
    ) -> object:
        return func(*(arg.held if isinstance(arg, Wrapped) else arg for arg in args), **(kwargs or {}))


@pytest.mark.parametrize("chosen", [None, like_a_card()], ids=["on the host", "in batches"])
def test_a_tensor_whose_elements_are_elsewhere_is_not_read_there(attach: Attach, chosen: Backend | None) -> None:
    model = Model(lambda y: Wrapped(y.detach()))
    scope, sink = attach(model, config=EVERY, _backend=chosen)
    model(torch.ones(2, 4)).sum().backward()
    scope.step()
    assert sink.row(0, "act", "plain") is not None
    assert sink.row(0, "act", "odd") is None
    assert "act not observed: Wrapped keeps its values in other tensors" in scope.coverage["reasons"]


def test_a_fake_training_has_no_values_and_no_warning(attach: Attach) -> None:
    with FakeTensorMode():
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scope, sink = attach(model, optimizer, config=EVERY)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scope.step()
    assert sink.records()[0].summaries == ()
    assert "weight not observed: FakeTensor keeps its values in other tensors" in scope.coverage["reasons"]


class Telling(torch.Tensor):
    """Says what is done with it."""

    told: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls,
        func: Any,  # noqa: ANN401
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[Any, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        cls.told.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def test_a_subclass_is_told_of_the_users_operations_only(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY)
    Telling.told.clear()
    model(torch.ones(2, 4).as_subclass(Telling)).sum().backward()
    optimizer.step()
    scope.step()
    assert Telling.told == ["linear", "relu", "linear", "sum", "backward"]
    for kind in ("act", "act_in", "act_grad"):
        assert sink.row(0, kind, "2") is not None, kind


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_stored_elements_of_compressed_sparse_parameters_are_measured(attach: Attach) -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(4, 4)
            self.weight = nn.Parameter(torch.eye(4).to_sparse_csr())
            self.after = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.after(torch.sparse.mm(self.weight, self.before(x).t()).t())
            return out

    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step()
    for layer in ("(model)", "before", "after"):
        assert sink.row(0, "grad", layer) is not None
    row = sink.row(0, "weight", "(model)")
    assert row is not None
    assert row["count"] == 4


class Picky(Reference):
    """Measures no tensor of three rows."""

    def measure(self, tensor: torch.Tensor, words: torch.Tensor, hist: torch.Tensor | None) -> None:
        if tensor.shape[0] == 3:
            raise RuntimeError("not this one")
        super().measure(tensor, words, hist)


def test_an_error_at_one_tensor_costs_no_other(attach: Attach) -> None:
    Guard.reraise = False
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope, sink = attach(model, optimizer, config=EVERY, _backend=Backend(variant=lambda _: Picky()))
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scope.step()
    row = sink.row(0, "grad", "1")
    assert row is not None
    assert row["count"] == 8
    assert scope.coverage["reasons"]["grad not observed: it could not be measured"] == ["0"]


def test_names_that_utf8_has_no_bytes_for_are_escaped(attach: Attach) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.add_module("a\ud800", nn.Linear(4, 4))
    scope, sink = attach(model)
    scope.step(**{"b\udfff": 2.0})
    assert list(sink.layers()) == ["0", "a\\ud800"]
    assert sink.scalar("b\\udfff") == [2.0]


def test_a_loss_without_a_value_costs_only_itself(attach: Attach) -> None:
    Guard.reraise = False
    scope, sink = attach(nn.Linear(2, 2))
    scope.step(loss=torch.ones((), device="meta"), other=1.0)
    assert sink.scalar("other") == [1.0]
    assert sink.scalar("loss") == [None]
