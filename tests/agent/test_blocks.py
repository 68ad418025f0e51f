"""Figures of block scales against a plain loop over the blocks."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope._blocks import BLOCK, _table, block_figures
from floatscope._formats import format_named

DTYPES = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def expected(values: torch.Tensor, format_: str, *, rounds_up: bool) -> list[float]:
    largest = format_named(format_).max
    exponents, shares = [], []
    for block in values.double().reshape(-1, BLOCK).tolist():
        amax = max(map(abs, block))
        if amax == 0 or not math.isfinite(amax):
            continue
        if rounds_up:
            exponent = next(e for e in range(-160, 160) if amax / 2.0**e <= largest)
        else:
            exponent = math.floor(math.log2(amax)) - math.floor(math.log2(largest))
        exponent = max(-127, min(127, exponent))
        exponents.append(exponent)
        nonzero = np.array([x for x in block if x])
        with np.errstate(all="ignore"):
            cast = np.clip(nonzero / 2.0**exponent, -largest, largest).astype(DTYPES[format_])
        shares.append(float(np.mean(cast.astype(np.float64) == 0)))
    return [min(exponents), max(exponents), max(shares)]


@pytest.mark.parametrize("rounds_up", [False, True])
@pytest.mark.parametrize("format_", DTYPES)
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_loop_over_the_blocks_gives_the_same(
    rounds_up: bool,
    format_: str,
    spread: float,
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(5, 7, 96, generator=generator)
    values = (values * torch.exp(spread * torch.randn(5, 7, 96, generator=generator))).to(dtype)
    values[0, 0, :32] = 0.0
    values[1, 1, 3] = math.nan
    values[2, 2, 40] = -math.inf
    figures = block_figures(values, format_, rounds_up=rounds_up)
    assert figures is not None
    assert figures.tolist() == pytest.approx(expected(values, format_, rounds_up=rounds_up), rel=1e-6)


@pytest.mark.parametrize("rounds_up", [False, True])
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_default_dtype_does_not_matter(default: torch.dtype, rounds_up: bool) -> None:
    values = torch.ones(4, 32)
    values[0, 0], values[1], values[2, 1:] = math.inf, 3e38, 0.0
    values[2, 1:3] = 1e-30  # two of three, which bfloat16 does not hold
    subnormal = torch.full((1, 32), 2.0**-149)
    want = [expected(each, "e4m3fn", rounds_up=rounds_up) for each in (values, subnormal)]
    _table.cache_clear()
    torch.set_default_dtype(default)
    try:
        figures = [block_figures(each, "e4m3fn", rounds_up=rounds_up) for each in (values, subnormal)]
    finally:
        torch.set_default_dtype(torch.float32)
        _table.cache_clear()
    for got, right in zip(figures, want, strict=True):
        assert got is not None
        assert got.dtype == torch.float32
        assert got.tolist() == pytest.approx(right, rel=1e-6)


def test_exponents_at_the_ends_of_e8m0() -> None:
    values = torch.zeros(3, 32)
    values[0, 0], values[1, 0], values[2, 5] = 2.0**-149, 3e38, 448.0
    figures = block_figures(values, "e4m3fn", rounds_up=True)
    assert figures is not None
    assert figures.tolist() == [-127.0, 120.0, 1.0]


def test_what_cannot_be_cast_in_blocks() -> None:
    assert block_figures(torch.zeros(4, 33), "e4m3fn", rounds_up=True) is None
    assert block_figures(torch.zeros(0, 32), "e4m3fn", rounds_up=True) is None
    assert block_figures(torch.tensor(1.0), "e4m3fn", rounds_up=True) is None
    nothing = block_figures(torch.zeros(2, 32), "e4m3fn", rounds_up=True)
    assert nothing is not None
    assert nothing.isnan().all()


def test_pieces_do_not_matter() -> None:
    values = torch.randn(9001, 32) * torch.linspace(-8, 8, 9001).exp2()[:, None]
    whole = block_figures(values, "e5m2", rounds_up=False)
    parts = [block_figures(part, "e5m2", rounds_up=False) for part in torch.split(values, 1000)]
    assert whole is not None
    assert whole[0] == min(float(part[0]) for part in parts if part is not None)
    assert whole[1] == max(float(part[1]) for part in parts if part is not None)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that give a tensor of their own, which a card is asked to run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if all(returned.alias_info is None for returned in func._schema.returns):
            self.run.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rounds_up", [True, False])
def test_an_operand_takes_few_launches(rounds_up: bool, dtype: torch.dtype) -> None:
    values = torch.randn(256, 1024).to(dtype)
    block_figures(values, "e4m3fn", rounds_up=rounds_up)  # the first one of a format makes its table
    with _Counting() as counted:
        block_figures(values, "e4m3fn", rounds_up=rounds_up)
    assert len(counted.run) <= 18, counted.run
