"""Whether a list of tensors is laid out as it was, so that a launch can be used again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch

from floatscope._stats import Plan, Rows, _layout
from floatscope._stats._cpu import Cpu
from floatscope._stats._layout import Layouts
from floatscope._stats._rtc_variant import RtcPlan, RtcVariant, Shape
from floatscope._stats._triton import TritonPlan, TritonVariant


def tensors(count: int = 3) -> list[torch.Tensor]:
    return [torch.ones(4, number + 2) for number in range(count)]


def addresses(those: list[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in those]


@pytest.fixture(params=["guards", "attributes"])
def layouts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Layouts]:
    """With torch's own guards, and as where they are missing."""
    if request.param == "attributes":
        monkeypatch.setattr(_layout, "_guards", lambda _: None)
    return Layouts


def test_tensors_that_move_are_followed(layouts: Callable[..., Layouts]) -> None:
    first = tensors()
    known = layouts(first)
    for those in (first, tensors(), [*tensors(1), *first[1:]], first):
        before = known.addresses
        assert known.follow(those)
        assert known.addresses.tolist() == addresses(those)
        assert (known.addresses is before) == (before.tolist() == addresses(those))


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(4, 5),
        torch.ones(3, 4).t(),
        torch.ones(4, 3, dtype=torch.float64),
        torch.ones(4, 6)[:, ::2],
        torch.ones(1).expand(4, 3),
        torch.ones(4, 3)._neg_view(),
        torch.ones(4, 3, device="meta"),
    ],
    ids=["shape", "strides", "dtype", "strided", "expanded", "negated", "device"],
)
def test_other_tensors_are_not(layouts: Callable[..., Layouts], other: torch.Tensor) -> None:
    known, first = layouts(tensors()), tensors()
    before = known.addresses
    assert not known.follow([first[0], other, first[2]])
    assert known.addresses is before


def test_one_whose_memory_was_given_away(layouts: Callable[..., Layouts]) -> None:
    first = tensors()
    known = layouts(first)
    for left in (0, 16):
        away = tensors()
        away[1].untyped_storage().resize_(left)
        with pytest.raises(ValueError, match="beyond its storage"):
            known.follow(away)
    assert known.addresses.tolist() == addresses(first)
    assert known.follow(first)


def test_memory_is_asked_for_once_at_an_address(
    layouts: Callable[..., Layouts], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = [tensors() for _ in range(_layout._REACHED)]
    known, asked = layouts(lists[0]), []
    monkeypatch.setattr(_layout, "require_memory", lambda tensor: asked.append(tensor.data_ptr()))
    for _ in range(3):
        for those in lists:
            assert known.follow(those)
    assert sorted(asked) == sorted(address for those in lists[1:] for address in addresses(those))
    assert known.follow(tensors())
    assert known.follow(lists[1])
    assert known._reached.shape == (3, _layout._REACHED)


class Launched:
    """Of an ``RtcVariant`` what a plan asks for, without a device."""

    tensors, resident, shape, tables = 2, 4, Shape(), torch.zeros(1)

    def __init__(self) -> None:
        self.addresses: list[int] = []

    @property
    def driver(self) -> Launched:
        return self

    def function(self, *_: object) -> None:
        return None

    def launch(self, launches: Sequence[Any], words: torch.Tensor, hist: torch.Tensor | None) -> None:
        self.addresses = [address for launch in launches for address in launch.addresses[: launch._tensors.value]]


def test_a_launch_reads_the_tensors_of_its_step_after_one_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variant, rows = Launched(), Rows(3, "cpu")
    plan = RtcPlan(cast("RtcVariant", variant), (0, 1, 2))
    first, then = tensors(), tensors()
    for those in (first, then, first):
        plan.run(rows, those, histogram=False)
        assert sorted(variant.addresses) == sorted(addresses(those))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RtcPlan, "_move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.run(rows, then, histogram=False)
    plan.run(rows, then, histogram=False)
    assert sorted(variant.addresses) == sorted(addresses(then))


def test_a_tensor_of_another_device_is_not_read() -> None:
    there = [*tensors(2), torch.ones(4, 4, device="meta")]
    variant, rows = Launched(), Rows(3, "cpu")
    plans: list[Plan] = [RtcPlan(cast("RtcVariant", variant), (0, 1, 2)), Cpu().plan((0, 1, 2))]
    # With its kernels it would have to be a card's.
    plans.append(TritonPlan(cast("TritonVariant", variant), (0, 1, 2)))
    for plan in plans:
        with pytest.raises(ValueError, match="on meta and not, as before, on cpu"):
            plan.run(rows, there, histogram=True)
    assert not variant.addresses
    assert not rows.words.any()
